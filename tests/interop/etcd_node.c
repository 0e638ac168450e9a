/* etcd_node.c - a node of a rendezvous by hand, for tests:
 *
 *     etcd_node BACKEND ENDPOINT RUN_ID MIN MAX CONF LOCAL_ADDR
 *
 * Commands come on stdin, one a line: next, waiting, closed, close, leave, shutdown,
 * set KEY VALUE, get KEY (of the round's store). Each is answered by one line on
 * stdout, an event and its words; news come in between, whenever they come. At the end
 * of stdin it goes without a word, like one that was killed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <muster/rendezvous.h>
#include <muster/store.h>

static struct muster_rendezvous *rdzv;
static struct muster_rendezvous_info info;

static void on_news(void *ctx, enum muster_news news, const char *text)
{
    static const char *const names[] = { "waiting", "lost", "evicted", "closed",
                                         "backend" };

    (void)ctx;
    printf("news %s %s\n", names[news], text);
    fflush(stdout);
}

static void on_log(void *ctx, enum muster_log_level level, const char *text)
{
    (void)ctx;
    if (level >= MUSTER_LOG_INFO)
        fprintf(stderr, "%s\n", text);
}

static void say(int rc, const char *done, const struct muster_error *err)
{
    if (rc < 0)
        printf("failed %s %s\n", muster_code_name(err->code), err->text);
    else
        printf("%s\n", done);
}

static void command(char *line)
{
    struct muster_error err = { 0 };
    struct muster_bytes value = { 0 };
    char *save = NULL, *word = strtok_r(line, " \n", &save), *key, *text;
    int rc;

    if (!word)
        return;
    if (strcmp(word, "next") == 0) {
        rc = muster_rendezvous_next(rdzv, &info, &err);
        if (rc < 0)
            say(rc, "", &err);
        else
            printf("joined %llu %lld %lld %s %u\n", (unsigned long long)info.round,
                   (long long)info.rank, (long long)info.world_size, info.master_addr,
                   info.master_port);
    } else if (strcmp(word, "waiting") == 0) {
        printf("waiting %lld\n", (long long)muster_rendezvous_num_nodes_waiting(rdzv));
    } else if (strcmp(word, "closed") == 0) {
        printf("closed %d\n", muster_rendezvous_is_closed(rdzv));
    } else if (strcmp(word, "close") == 0) {
        say(muster_rendezvous_set_closed(rdzv, &err), "done", &err);
    } else if (strcmp(word, "leave") == 0) {
        say(muster_rendezvous_leave(rdzv, &err), "done", &err);
    } else if (strcmp(word, "shutdown") == 0) {
        say(muster_rendezvous_shutdown(rdzv, &err), "done", &err);
    } else if (strcmp(word, "set") == 0) {
        key = strtok_r(NULL, " \n", &save);
        text = strtok_r(NULL, " \n", &save);
        say(muster_store_set(info.store, key, text, strlen(text), &err), "done", &err);
    } else if (strcmp(word, "get") == 0) {
        rc = muster_store_get(info.store, strtok_r(NULL, " \n", &save), &value, &err);
        if (rc < 0)
            say(rc, "", &err);
        else
            printf("value %.*s\n", (int)value.size, (const char *)value.data);
        muster_bytes_free(&value);
    }
    fflush(stdout);
}

int main(int argc, char **argv)
{
    const struct muster_rendezvous_hooks hooks = { NULL, on_log, on_news };
    struct muster_error err;
    struct muster_params *params;
    char line[4096];

    if (argc != 8)
        return 2;
    if (muster_params_new(argv[1], argv[2], argv[3], atoi(argv[4]), atoi(argv[5]),
                          argv[7], &params, &err) < 0 ||
        muster_params_parse(params, argv[6], &err) < 0 ||
        muster_rendezvous_open(params, NULL, &hooks, &rdzv, &err) < 0) {
        say(-1, "", &err);
        return 1;
    }
    muster_params_free(params);
    while (fgets(line, sizeof line, stdin))
        command(line);
    muster_rendezvous_free(rdzv);
    return 0;
}
