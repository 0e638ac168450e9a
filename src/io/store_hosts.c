/* store_hosts.c - see store_hosts.h. Reads: messages, time, feed, perform, the end. The
 * runs are in store_hosts_runs.c, the key that torchrun's nodes use in
 * store_hosts_key.c. */
#include "io/store_hosts.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/socket.h>

#include "base/err.h"
#include "base/mem.h"
#include "io/clock.h"
#include "io/store_hosts_int.h"
#include "io/store_rounds.h"

#define FORGET_MOST 8 /* rounds at once */

static struct store_hosts *hosts_new(struct store_server *s)
{
    struct store_hosts *h = mem_calloc(1, sizeof *h);

    if (!h)
        return NULL;
    map_init(&h->runs, s->opts.seed);
    rdzv_host_fx_init(&h->fx);
    store_fx_init(&h->store_fx);
    buf_init(&h->out, HOSTED_MAX + 64);
    (void)uv_timer_init(s->loop, &h->timer);
    h->timer.data = s;
    return h;
}

/* ---- messages ---- */

static void send_msg(struct store_server *s, struct conn *c, const struct hosted_msg *m)
{
    struct buf *out = &s->hosts->out;
    uint8_t length[8];

    buf_clear(out);
    if (buf_append(out, length, sizeof length) < 0 || hosted_encode(out, m) < 0) {
        conn_refuse(s, c, "out of memory");
        return;
    }
    put_u64(out->mem + out->head, buf_len(out) - sizeof length);
    server_send(s, c, buf_span(out));
}

/* A guest's connection tells of its end as early as the network lets it. */
static void watch_socket(int fd)
{
    const int on = 1, idle_s = 5, every_s = 2, probes = 3;
    const unsigned unacked_ms = 15000;

    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof every_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacked_ms, sizeof unacked_ms);
}

static void no_room(struct store_server *s, struct conn *c, struct span run_id)
{
    char text[256];

    (void)snprintf(text, sizeof text,
                   "the store %s is host to %u runs that all go on, as many as it can "
                   "be: end some of them, or give this one another store",
                   s->address, HOSTED_RUNS);
    trace(s->opts.trace, TRACE_WARN, "turned a node of run '%.*s' away: %s",
          (int)MIN_OF(run_id.n, 100), (const char *)run_id.p, text);
    send_msg(s, c,
             &(struct hosted_msg){ .kind = HOSTED_REFUSED,
                                   .code = MUSTER_EFULL,
                                   .text = span_str(text) });
}

static int on_hello(struct store_server *s, struct conn *c, const struct hosted_msg *m)
{
    struct rdzv_host_event ev = { .kind = RDZV_HOST_MSG, .peer = c->peer, .msg = m };
    struct hosted_run *run;
    bool begun;
    int rc;

    if (m->run_id.n == 0) {
        conn_refuse(s, c, "HELLO without a run id");
        return 0;
    }
    rc = run_of_hello(s, m->run_id, &run, &begun);
    if (rc == MUSTER_EFULL) {
        no_room(s, c, m->run_id);
        return 0;
    }
    if (rc < 0)
        return rc;
    run_hold(run, c);
    watch_socket(c->fd);
    if (begun)
        hosts_look(s, run); /* Others may have begun it: nothing to resume then. */
    hosts_feed(s, run, &ev);
    if (begun && rdzv_host_nodes(run->host) == 0) { /* It was refused. */
        run_let_go(c);
        run_free(s, run);
    }
    return 0;
}

bool hosts_take(struct store_server *s, struct conn *c, const struct c10d_request *req,
                int *rc)
{
    struct rdzv_host_event ev = { .kind = RDZV_HOST_MSG, .peer = c->peer };
    struct muster_error err;
    struct hosted_msg msg;

    if (req->op != C10D_QUEUE_PUSH || !span_eq(req->key, span_str(HOSTED_KEY)))
        return false;
    *rc = 0;
    if (!s->hosts)
        s->hosts = hosts_new(s);
    if (!s->hosts) {
        *rc = MUSTER_ENOMEM;
        return true;
    }
    if (hosted_decode(req->value, &msg, &err) < 0) {
        conn_refuse(s, c, "%s", err.text);
        return true;
    }
    if (!c->run && msg.kind == HOSTED_HELLO) {
        *rc = on_hello(s, c, &msg);
    } else if (!c->run) {
        conn_refuse(s, c, "%s message before HELLO", hosted_kind_name(msg.kind));
    } else {
        ev.msg = &msg;
        hosts_feed(s, c->run, &ev);
    }
    hosts_arm(s);
    return true;
}

void hosts_left(struct store_server *s, struct conn *c)
{
    struct rdzv_host_event ev = { .kind = RDZV_HOST_GONE, .peer = c->peer };

    if (!c->run)
        return;
    hosts_feed(s, c->run, &ev);
    run_let_go(c);
    hosts_arm(s);
}

/* ---- time ---- */

static void on_timer(uv_timer_t *timer)
{
    struct store_server *s = timer->data;
    const struct now now = clock_now();

    for (struct hosted_run *run = s->hosts->first; run; run = run->next) {
        struct rdzv_host_event ev = { .kind = RDZV_HOST_TIMER };

        if (rdzv_host_deadline(run->host) <= now.mono_ms)
            hosts_feed(s, run, &ev);
    }
    hosts_arm(s);
    server_end_turn(s);
}

void hosts_arm(struct store_server *s)
{
    uint64_t due = MONO_NEVER;

    for (const struct hosted_run *run = s->hosts->first; run; run = run->next)
        due = MIN_OF(due, rdzv_host_deadline(run->host));
    clock_arm(&s->hosts->timer, on_timer, due);
}

/* ---- feed and perform ---- */

static void perform(struct store_server *s)
{
    const struct rdzv_host_fx *fx = &s->hosts->fx;

    for (size_t i = 0; i < fx->count; i++) {
        const struct rdzv_host_effect *e = &fx->items[i];
        struct conn *c = e->peer < s->conns_size ? s->conns[e->peer] : NULL;

        if (!c || c->dead)
            continue;
        switch (e->kind) {
        case RDZV_HOST_SEND:
            send_msg(s, c, &e->msg);
            break;
        case RDZV_HOST_DROP:
            run_let_go(c); /* The host knows. */
            conn_refuse(s, c, "%.*s", (int)e->msg.text.n, (const char *)e->msg.text.p);
            break;
        }
    }
}

/* Slow nodes may still read of the round that is just over. One that says it is the
 * millionth, after a restart of ours or in a stranger's state, has few to forget. */
static void forget_rounds(struct store_server *s, struct hosted_run *run)
{
    const int64_t round = rdzv_host_round(run->host);

    if (round > 1 && round - 1 - run->kept > FORGET_MOST)
        run->kept = round - 1 - FORGET_MOST;
    for (; run->kept + 1 < round; run->kept++)
        store_forget_round(s->store, &s->hosts->store_fx, run->link.key, run->kept);
}

void hosts_feed(struct store_server *s, struct hosted_run *run,
                struct rdzv_host_event *ev)
{
    struct muster_error err;
    int rc;

    ev->now = clock_now();
    rc = rdzv_host_step(run->host, ev, &s->hosts->fx, &err);
    if (rc < 0) {
        trace(s->opts.trace, TRACE_ERROR, "store %s, key %.*s: %s", s->address,
              (int)run->link.key.n, (const char *)run->link.key.p, err.text);
        return;
    }
    perform(s);
    forget_rounds(s, run);
    if (run->watched && ev->kind != RDZV_HOST_SEEN)
        hosts_show(s, run, false);
}

/* ---- the end ---- */

void hosts_close(struct store_server *s, uv_close_cb cb)
{
    uv_close((uv_handle_t *)&s->hosts->timer, cb);
}

void hosts_free(struct store_server *s)
{
    if (!s->hosts)
        return;
    while (s->hosts->first)
        run_free(s, s->hosts->first);
    map_fini(&s->hosts->runs);
    rdzv_host_fx_fini(&s->hosts->fx);
    store_fx_fini(&s->hosts->store_fx);
    buf_fini(&s->hosts->out);
    mem_free(s->hosts);
    s->hosts = NULL;
}
