/* watch.c - `muster-bench watch --nodes N`: a job of many nodes with a page. This
 * process is the node of the coordinator: a store, the session, the status and its
 * HTTP, as an agent has them; a child plays all other nodes, each on a connection of
 * its own, which say who they are and answer what they are asked. Prints the page's
 * address and its own process number; ends when stdin does. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>
#include <uv.h>

#include "base/mem.h"
#include "bench.h"
#include "job/core/wire.h"
#include "job/run_clock.h"
#include "job/session.h"
#include "loop/clock.h"
#include "status/http.h"
#include "status/status.h"
#include "store/extension.h"
#include "store/push_session.h"
#include "store/server.h"

#define RUN_ID  "bench"
#define WORKERS 8u
#define AT_ONCE 512u /* nodes that connect at the same time */

static void die(const char *what)
{
    fprintf(stderr, "muster-bench watch: %s\n", what);
    exit(1);
}

/* What node number i tells of itself. */
static struct node_status facts(struct worker_status *workers, int64_t i)
{
    for (size_t k = 0; k < WORKERS; k++)
        workers[k] = (struct worker_status){ .state = WORKER_RUNNING,
                                             .pid = 1000 + (int64_t)k,
                                             .memory = 1u << 30,
                                             .cpu = 990,
                                             .cpu_ms = 3600000 };
    return (struct node_status){ .state = NODE_RUNNING,
                                 .round = 0,
                                 .group_rank = i,
                                 .first_rank = i * (int64_t)WORKERS,
                                 .pid = 999,
                                 .memory = 4u << 20,
                                 .version = span_str("0.2.0"),
                                 .workers = workers,
                                 .worker_count = WORKERS };
}

/* ---- the other nodes ---- */

struct crowd {
    uv_loop_t loop;
    uint16_t port;
    size_t count, next, away, attached;
    struct peer *peers;
    uv_timer_t again;
    int tell; /* a byte to the host: all have come */
};

struct peer {
    struct crowd *crowd;
    struct push_session *session;
    int64_t number;
    bool seen; /* has been attached once */
    bool away; /* the connection broke: it comes back, as an agent does */
};

static void say(struct peer *p, const struct run_msg *m)
{
    struct buf b;

    buf_init(&b, WIRE_MAX);
    if (msg_encode(&b, m) < 0)
        die("a message does not fit");
    push_session_send(p->session, buf_span(&b));
    buf_fini(&b);
}

static void peer_up(void *ctx)
{
    struct peer *p = ctx;
    char host[32];

    (void)snprintf(host, sizeof host, "node%lld", (long long)p->number);
    say(p, &(struct run_msg){ .kind = MSG_HELLO,
                              .flags = MSG_RECORD,
                              .run_id = span_str(RUN_ID),
                              .host = span_str(host),
                              .where = span_str("10.0.0.1"),
                              .pid = 999,
                              .nproc = WORKERS,
                              .nonce = (uint64_t)p->number + 1 });
}

static void connect_next(struct crowd *c);

static void say_ranks(struct peer *p)
{
    say(p, &(struct run_msg){ .kind = MSG_RANKS,
                              .rank = p->number * (int64_t)WORKERS,
                              .count = WORKERS,
                              .total = (int64_t)p->crowd->count + 1 });
}

/* All have come: a round begins, and everybody tells of its ranks. */
static void on_attached(struct peer *p)
{
    struct crowd *c = p->crowd;

    if (p->seen) {
        if (c->attached == c->count)
            say_ranks(p);
        return;
    }
    p->seen = true;
    if (++c->attached == c->count) {
        if (write(c->tell, "", 1) != 1)
            die("the host is gone");
        for (size_t i = 0; i < c->count; i++)
            if (!c->peers[i].away)
                say_ranks(&c->peers[i]);
    }
    connect_next(c);
}

static bool peer_msg(void *ctx, struct span bytes, struct muster_error *err)
{
    struct peer *p = ctx;
    struct worker_status workers[WORKERS];
    const struct run_now now = run_clock();
    struct run_msg m;

    if (msg_decode(bytes, &m, err) < 0)
        return false;
    if (m.kind == MSG_PING)
        say(p, &(struct run_msg){ .kind = MSG_BEAT,
                                  .seq = m.seq,
                                  .mono_us = (int64_t)now.mono_us,
                                  .wall_us = now.wall_us });
    if (m.kind == MSG_WELCOME)
        on_attached(p);
    if (m.kind == MSG_QUESTION) {
        const struct node_status n = facts(workers, p->number);
        struct buf b;

        buf_init(&b, SESSION_ANSWER_MAX);
        node_status_encode(&b, &n);
        say(p, &(struct run_msg){
                   .kind = MSG_ANSWER, .seq = m.seq, .bytes = buf_span(&b) });
        buf_fini(&b);
    }
    return true;
}

static void peer_down(void *ctx, const struct muster_error *err)
{
    struct peer *p = ctx;

    (void)err;
    p->away = true;
    p->crowd->away++;
}

static void connect_peer(struct peer *p)
{
    static const struct push_session_cbs cbs = { peer_up, peer_msg, peer_down };
    const struct push_session_opts opts = { .host = "127.0.0.1",
                                            .port = p->crowd->port,
                                            .timeout_ms = 600000,
                                            .max = WIRE_MAX };

    if (push_session_open(&p->crowd->loop, &opts, &cbs, p, &p->session, NULL) < 0)
        die("no connection");
}

static void connect_next(struct crowd *c)
{
    if (c->next == c->count)
        return;
    struct peer *p = &c->peers[c->next++];
    *p = (struct peer){ .crowd = c, .number = (int64_t)c->next };
    connect_peer(p);
}

static void on_again(uv_timer_t *timer)
{
    struct crowd *c = timer->data;

    for (size_t i = 0; c->away > 0 && i < c->count; i++)
        if (c->peers[i].away) {
            c->peers[i].away = false;
            c->away--;
            push_session_close(c->peers[i].session);
            connect_peer(&c->peers[i]);
        }
}

static void be_crowd(size_t count, uint16_t port, int tell)
{
    struct crowd c = { .port = port, .count = count, .tell = tell };

    prctl(PR_SET_PDEATHSIG, 9);
    uv_loop_init(&c.loop);
    c.peers = calloc(count, sizeof *c.peers);
    if (!c.peers)
        die("out of memory");
    uv_timer_init(&c.loop, &c.again);
    c.again.data = &c;
    uv_timer_start(&c.again, on_again, 500, 500);
    for (size_t i = 0; i < AT_ONCE; i++)
        connect_next(&c);
    uv_run(&c.loop, UV_RUN_DEFAULT);
    exit(0);
}

/* ---- the coordinator's node ---- */

struct host {
    uv_loop_t loop;
    size_t nodes;
    struct session *session;
    struct node_status own;
    struct worker_status workers[WORKERS];
    int64_t began_us;
};

static void describe(void *ctx, struct job_input *in)
{
    struct host *h = ctx;

    h->own = facts(h->workers, 0);
    *in = (struct job_input){ .run_id = RUN_ID,
                              .backend = "c10d",
                              .endpoint = "node0:29400",
                              .max_restarts = 3,
                              .nnodes_min = (int64_t)h->nodes,
                              .nnodes_max = (int64_t)h->nodes,
                              .began_us = h->began_us,
                              .now_us = clock_now().wall_us,
                              .host = "node0",
                              .addr = "10.0.0.1",
                              .agent_pid = getpid(),
                              .own = &h->own };
}

static void on_all_here(uv_poll_t *poll, int status, int events)
{
    struct host *h = poll->data;

    (void)status;
    (void)events;
    uv_poll_stop(poll);
    session_ranks(h->session, 0, 0, WORKERS, (int64_t)h->nodes, false);
}

static void on_stdin(uv_poll_t *poll, int status, int events)
{
    char byte;

    (void)status;
    (void)events;
    if (read(0, &byte, 1) <= 0)
        uv_stop(poll->loop);
}

int bench_watch(int argc, char **argv)
{
    const struct rlimit files = { 20000, 20000 };
    struct host h = { .nodes = 10000 };
    struct store_server_opts server_opts;
    struct store_server *server;
    struct status_http *http;
    struct http_address at;
    struct status *status;
    struct muster_error err = { 0 };
    uv_poll_t input, here;
    int tell[2];

    if (argc == 3 && strcmp(argv[1], "--nodes") == 0)
        h.nodes = strtoul(argv[2], NULL, 10);
    else if (argc != 1)
        die("usage: muster-bench watch [--nodes N]");
    (void)setrlimit(RLIMIT_NOFILE, &files);
    uv_loop_init(&h.loop);
    h.began_us = clock_now().wall_us;
    store_server_opts_init(&server_opts);
    server_opts.extension = &run_extension;
    server_opts.bind = "127.0.0.1";
    if (store_server_open(&h.loop, &server_opts, &server, &err) != 0)
        die(err.text);
    const uint16_t port = store_server_port(server);
    if (pipe(tell) < 0)
        die("no pipe");
    const pid_t crowd = fork();
    if (crowd == 0)
        be_crowd(h.nodes - 1, port, tell[1]);
    const struct session_opts session_opts = { .loop = &h.loop,
                                               .run_id = RUN_ID,
                                               .host = "node0",
                                               .addr = "10.0.0.1",
                                               .pid = getpid(),
                                               .nproc = WORKERS,
                                               .max_restarts = 3,
                                               .ctx = &h };
    const struct status_opts status_opts = { .loop = &h.loop,
                                             .describe = describe,
                                             .ctx = &h };
    if (session_open(&session_opts, &h.session, &err) != 0 ||
        status_open(&status_opts, &status, &err) != 0 ||
        status_set_session(status, h.session) != 0 ||
        http_address_parse("127.0.0.1:0", &at, &err) != 0 ||
        status_http_open(&h.loop, status, &at, "", &http, &err) != 0)
        die(err.text);
    session_attach(h.session, "127.0.0.1", port, true, true);
    uv_poll_init(&h.loop, &here, tell[0]);
    here.data = &h;
    uv_poll_start(&here, UV_READABLE, on_all_here);
    uv_poll_init(&h.loop, &input, 0);
    uv_poll_start(&input, UV_READABLE, on_stdin);
    printf("{\"bench\": \"watch\", \"url\": \"%s\", \"pid\": %d, \"crowd\": %d}\n",
           status_http_url(http), (int)getpid(), (int)crowd);
    fflush(stdout);
    uv_run(&h.loop, UV_RUN_DEFAULT);
    return 0;
}
