/* rdzv_state.c - for test_rdzv_state.py: reads requests, one line each, and prints what
 * our reader, writer and decisions make of them. States are base64, as in the store.
 *   copy <state>                      -> <state>, or "error <text>"
 *   sanitize <state> <settings> <wall_us>          -> <state>
 *   join|exit|close|beat <state> <settings> <wall_us> <node> <mono_ms> <due_ms>
 *                                     -> <action> <state after it>
 * settings: min,max,interval_s,attempts,last_call_ms   node: addr,pid,local_id */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "rendezvous/core/decisions.h"
#include "rendezvous/core/state_pickle.h"

static const char *const torch_names[] = {
#define NAME(name, torch) torch,
    RDZV_ACTIONS(NAME)
#undef NAME
};

static void print_state(struct rdzv_state *s)
{
    struct buf out;

    buf_init(&out, SIZE_MAX);
    if (pickle_write_text(s, &out) < 0)
        abort();
    printf("%.*s\n", (int)buf_len(&out), (const char *)buf_data(&out));
    buf_fini(&out);
}

static struct rdzv_settings settings_of(const char *text)
{
    struct rdzv_settings s;

    rdzv_settings_init(&s, 1, 1);
    if (sscanf(text, "%" SCNd64 ",%" SCNd64 ",%" SCNd64 ",%" SCNd64 ",%" SCNu64,
               &s.min_nodes, &s.max_nodes, &s.keep_alive_interval_s,
               &s.keep_alive_max_attempt, &s.last_call_ms) != 5)
        abort();
    return s;
}

static struct rdzv_node node_of(char *text)
{
    struct rdzv_node n = { 0 };
    char *comma = strchr(text, ',');

    if (!comma || sscanf(comma, ",%" SCNd64 ",%" SCNd64, &n.pid, &n.local_id) != 2)
        abort();
    n.addr = span_of(text, (size_t)(comma - text));
    return n;
}

static enum rdzv_action decide(const char *what, const struct rdzv_view *v)
{
    if (strcmp(what, "join") == 0)
        return rdzv_join_next(v);
    if (strcmp(what, "exit") == 0)
        return rdzv_exit_next(v);
    return strcmp(what, "close") == 0 ? rdzv_close_next(v) : rdzv_keep_alive_next(v);
}

static void answer(struct rdzv_state *s, const char *what)
{
    char *settings_text = strtok(NULL, " \n"), *wall = strtok(NULL, " \n");
    char *who = strtok(NULL, " \n"), *mono = strtok(NULL, " \n");
    char *due = strtok(NULL, " \n");
    struct rdzv_settings settings;
    enum rdzv_action a;
    struct rdzv_node n;
    struct rdzv_view v;
    struct now now;

    if (strcmp(what, "copy") == 0) {
        print_state(s);
        return;
    }
    settings = settings_of(settings_text);
    now.wall_us = strtoll(wall, NULL, 10);
    if (strcmp(what, "sanitize") == 0) {
        (void)rdzv_sanitize(s, &settings, now.wall_us);
        print_state(s);
        return;
    }
    n = node_of(who);
    now.mono_ms = strtoull(mono, NULL, 10);
    v = rdzv_view_of(s, &n, &settings, now, strtoull(due, NULL, 10));
    a = decide(what, &v);
    if (rdzv_apply(s, a, &n, &settings, now.wall_us) < 0)
        abort();
    printf("%s ", torch_names[a]);
    print_state(s);
}

int main(void)
{
    char *line = NULL;
    size_t size = 0;

    while (getline(&line, &size, stdin) > 0) {
        const char *what = strtok(line, " \n"), *text = strtok(NULL, " \n");
        struct muster_error err;
        struct rdzv_state s;

        if (!what || !text)
            abort();
        if (pickle_read_text(span_str(text), &s, &err) < 0) {
            printf("error %s\n", err.text);
            continue;
        }
        answer(&s, what);
        rdzv_state_fini(&s);
    }
    free(line);
    return 0;
}
