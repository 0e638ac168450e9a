/* rdzv_node.c - for the tests in Python: a node on the public API that does what it is
 * told, one command a line, and says how that went, one line each.
 *
 *   rdzv_node BACKEND ENDPOINT RUN_ID MIN MAX ADDR [KEY=VALUE,...]
 *
 *   next      joined ROUND RANK WORLD MASTER_ADDR:PORT | error CODE TEXT
 *   barrier   passed (the agents' exit barrier on the round's store) | error ...
 *   waiting   waiting N            closed     closed 0 or 1
 *   leave, close, shutdown         ok | error ...
 *   quit      nothing: ends
 * News come whenever they come: news KIND TEXT. The log goes to stderr. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "muster/rendezvous.h"
#include "muster/store.h"

static void on_log(void *ctx, enum muster_log_level level, const char *text)
{
    (void)ctx;
    fprintf(stderr, "%d %s\n", (int)level, text);
}

static void on_news(void *ctx, enum muster_news news, const char *text)
{
    static const char *const names[] = { "WAITING", "LOST", "EVICTED", "CLOSED",
                                         "BACKEND" };

    (void)ctx;
    printf("news %s %s\n", names[news], text);
    fflush(stdout);
}

static void say(int rc, const struct muster_error *err, const char *ok)
{
    if (rc < 0)
        printf("error %s %s\n", muster_code_name(rc), err->text);
    else
        printf("%s\n", ok);
    fflush(stdout);
}

/* As launcher.md has it: each adds 1, whoever comes last says so, all wait for it. */
static int barrier(const struct muster_rendezvous_info *info, struct muster_error *err)
{
    static const char prefix[] = "torchelastic/agent/terminal_state/";
    char members[64], last[64];
    struct muster_bytes value = { 0 };
    int64_t here;
    int rc;

    (void)snprintf(members, sizeof members, "%snum_members", prefix);
    (void)snprintf(last, sizeof last, "%slast_member", prefix);
    rc = muster_store_add(info->store, members, 1, &here, err);
    if (rc == 0 && here == info->world_size)
        rc = muster_store_set(info->store, last, "<val_ignored>", 13, err);
    if (rc == 0)
        rc = muster_store_get(info->store, last, &value, err);
    muster_bytes_free(&value);
    return rc;
}

static void obey(struct muster_rendezvous *r, const char *line,
                 struct muster_rendezvous_info *info)
{
    struct muster_error err;
    char text[1200];
    int rc;

    if (strcmp(line, "next") == 0) {
        rc = muster_rendezvous_next(r, info, &err);
        if (rc == 0)
            (void)snprintf(text, sizeof text,
                           "joined %" PRIu64 " %" PRId64 " %" PRId64 " %s:%u",
                           info->round, info->rank, info->world_size, info->master_addr,
                           info->master_port);
        say(rc, &err, text);
    } else if (strcmp(line, "barrier") == 0) {
        say(barrier(info, &err), &err, "passed");
    } else if (strcmp(line, "waiting") == 0) {
        (void)snprintf(text, sizeof text, "waiting %" PRId64,
                       muster_rendezvous_num_nodes_waiting(r));
        say(0, NULL, text);
    } else if (strcmp(line, "closed") == 0) {
        say(0, NULL, muster_rendezvous_is_closed(r) ? "closed 1" : "closed 0");
    } else if (strcmp(line, "leave") == 0) {
        say(muster_rendezvous_leave(r, &err), &err, "ok");
    } else if (strcmp(line, "close") == 0) {
        say(muster_rendezvous_set_closed(r, &err), &err, "ok");
    } else if (strcmp(line, "shutdown") == 0) {
        say(muster_rendezvous_shutdown(r, &err), &err, "ok");
    } else {
        printf("what? %s\n", line);
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    const struct muster_rendezvous_hooks hooks = { .log = on_log, .news = on_news };
    struct muster_rendezvous_info info = { 0 };
    struct muster_rendezvous *r;
    struct muster_params *p;
    struct muster_error err;
    char *line = NULL;
    size_t size = 0;
    int rc;

    if (argc < 7)
        return 2;
    rc = muster_params_new(argv[1], argv[2], argv[3], atoi(argv[4]), atoi(argv[5]),
                           argv[6], &p, &err);
    if (rc == 0)
        rc = muster_params_parse(p, argc > 7 ? argv[7] : "", &err);
    if (rc == 0)
        rc = muster_rendezvous_open(p, NULL, &hooks, &r, &err);
    if (rc < 0) {
        say(rc, &err, "");
        return 1;
    }
    muster_params_free(p);
    while (getline(&line, &size, stdin) > 0) {
        line[strcspn(line, "\n")] = '\0';
        if (strcmp(line, "quit") == 0)
            break;
        obey(r, line, &info);
    }
    muster_rendezvous_free(r);
    free(line);
    return 0;
}
