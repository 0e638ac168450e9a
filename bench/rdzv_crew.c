/* rdzv_crew.c - a process of nodes of ours, each with a connection of its own. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <uv.h>

#include "auth/secret.h"
#include "base/base.h"
#include "rdzv.h"
#include "rendezvous/core/settings.h"
#include "rendezvous/seat_session.h"

/* As many reports as a pipe takes whole, whoever else writes to it. */
#define BATCH (4096 / sizeof(struct rdzv_report))

struct crew;

struct node {
    struct crew *crew;
    struct session *session;
    bool lost_notified;
};

struct crew {
    struct node *nodes;
    long count;
    int round;
    int reports, orders; /* pipes */
    struct rdzv_report batch[BATCH];
    size_t batched;
    uv_loop_t loop;
    uv_poll_t poll;
    uv_prepare_t prepare;
};

static void flush(struct crew *c)
{
    const size_t size = c->batched * sizeof c->batch[0];

    if (size && write(c->reports, c->batch, size) != (ssize_t)size)
        _exit(3);
    c->batched = 0;
}

static void on_prepare(uv_prepare_t *p)
{
    flush(p->data);
}

/* Stamped now, sent with others before the loop waits: what is measured is the
 * rendezvous, not the pipe. */
static void report(struct crew *c, struct rdzv_report r)
{
    r.at_s = rdzv_now_s();
    c->batch[c->batched++] = r;
    if (c->batched == BATCH)
        flush(c);
}

static void on_told(void *ctx, const struct rdzv_effect *told)
{
    struct node *n = ctx;
    struct crew *c = n->crew;

    if (told->kind == RDZV_FX_JOINED) {
        report(c, (struct rdzv_report){ REPORT_RANK, c->round, told->rank, told->world,
                                        0 });
    } else if (told->kind == RDZV_FX_REFUSED) {
        fprintf(stderr, "muster-bench: a node was refused: %s\n", told->text);
        report(c, (struct rdzv_report){ .kind = REPORT_FAILED });
    } else if (told->kind == RDZV_FX_NEWS && told->news == RDZV_NEWS_LOST &&
               !n->lost_notified) {
        n->lost_notified = true;
        report(c, (struct rdzv_report){ .kind = REPORT_LOST });
    }
}

static void on_order(uv_poll_t *p, int status, int events)
{
    struct crew *c = p->data;
    char order;

    (void)status;
    (void)events;
    if (read(c->orders, &order, 1) != 1 || order == 'q')
        _exit(0);
    if (order == 'k') {
        seat_session_close(c->nodes[0].session, NULL, NULL);
        c->nodes[0].session = NULL;
        return;
    }
    c->round++;
    for (long i = 0; i < c->count; i++)
        seat_session_request(c->nodes[i].session, RDZV_EV_JOIN);
}

static void open_nodes(struct crew *c, const struct rdzv_options *o, long first)
{
    const struct secret_opts secret = { .run_id = "bench" };
    struct muster_error err;
    struct auth *auth; /* With MUSTER_TOKEN set, every node proves itself. */

    if (secret_load(&secret, &auth, &err) < 0) {
        fprintf(stderr, "muster-bench: %s\n", err.text);
        _exit(3);
    }
    for (long i = 0; i < c->count; i++) {
        struct seat_opts opts = { .loop = &c->loop,
                                  .run_id = "bench",
                                  .self = { span_str("bench"), first + i, 0 },
                                  .nonce = (uint64_t)(first + i),
                                  .rank_order_key = -1,
                                  .auth = auth,
                                  .host = o->host,
                                  .port = o->port,
                                  .cb = on_told,
                                  .ctx = &c->nodes[i] };

        rdzv_settings_init(&opts.settings, o->nodes + o->more, o->nodes + o->more);
        c->nodes[i].crew = c;
        if (seat_session_open(NULL, &opts, &c->nodes[i].session, &err) < 0) {
            fprintf(stderr, "muster-bench: %s\n", err.text);
            _exit(3);
        }
    }
}

void rdzv_crew_run(const struct rdzv_options *o, long first, long count, int orders,
                   int reports)
{
    static struct crew c;

    c = (struct crew){
        .count = count, .reports = reports, .orders = orders, .round = -1
    };
    c.nodes = calloc((size_t)count, sizeof *c.nodes);
    if (!c.nodes || uv_loop_init(&c.loop) < 0)
        _exit(3);
    open_nodes(&c, o, first);
    (void)uv_poll_init(&c.loop, &c.poll, orders);
    c.poll.data = &c;
    (void)uv_poll_start(&c.poll, UV_READABLE, on_order);
    (void)uv_prepare_init(&c.loop, &c.prepare);
    c.prepare.data = &c;
    (void)uv_prepare_start(&c.prepare, on_prepare);
    (void)uv_run(&c.loop, UV_RUN_DEFAULT);
    _exit(0);
}
