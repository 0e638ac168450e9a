/* store_server.c - the driver of the store: sockets and deadlines outside, decisions in
 * store/. See store_server.h.
 *
 * Here: deadlines, feed, perform. What the sockets tell is in store_loop.c, the bytes
 * of a connection in store_conn.c, the beginning and the end in store_open.c. */
#include "io/store_server.h"

#include <sys/epoll.h>

#include "base/mem.h"
#include "io/store_hosts.h"
#include "io/store_server_int.h"

#define PAUSE_MS 1000u /* without descriptors, at most */

static void feed(struct store_server *s, const struct store_event *ev);

/* ---- deadlines, and who has left ---- */

void server_listen(struct store_server *s, bool on)
{
    struct epoll_event ev = { .events = on ? EPOLLIN : 0, .data.ptr = s };

    s->paused = !on;
    (void)epoll_ctl(s->epoll, EPOLL_CTL_MOD, s->listener, &ev);
}

static void on_timer(uv_timer_t *timer)
{
    struct store_server *s = CONTAINER_OF(timer, struct store_server, timer);
    const uint64_t now = uv_now(s->loop);
    struct conn *c;

    if (s->paused)
        server_listen(s, true);
    while ((c = s->timed.first) && c->due_ms <= now) {
        if (c->ended)
            conn_refuse(s, c, "it has ended and does not take its answers");
        else if (s->old_peers)
            server_untime(s, c); /* Clients of PyTorch 2.0 keep a silent connection. */
        else
            conn_refuse(s, c, "at byte %llu: no whole request within %llu ms",
                        (unsigned long long)c->decoder.offset,
                        (unsigned long long)s->opts.first_bytes_ms);
    }
    server_tell_left(s);
    conns_free(&s->gone);
    server_arm(s);
}

void server_arm(struct store_server *s)
{
    const uint64_t now = uv_now(s->loop);
    uint64_t after = MONO_NEVER;

    if (s->timed.first)
        after = s->timed.first->due_ms > now ? s->timed.first->due_ms - now : 0;
    if (s->paused)
        after = MIN_OF(after, PAUSE_MS);
    if (after != MONO_NEVER)
        (void)uv_timer_start(&s->timer, on_timer, after, 0);
}

void server_time(struct store_server *s, struct conn *c)
{
    if (c->timed)
        return;
    c->timed = true;
    c->due_ms = uv_now(s->loop) + s->opts.first_bytes_ms;
    conns_append(&s->timed, c);
    if (!uv_is_active((uv_handle_t *)&s->timer))
        server_arm(s); /* Else it is armed for somebody older, and then looks again. */
}

void server_untime(struct store_server *s, struct conn *c)
{
    if (c->timed)
        conns_remove(&s->timed, c);
    c->timed = false;
}

void server_known(struct store_server *s, struct conn *c)
{
    c->known = true;
    server_untime(s, c);
    if (c->decoder.dialect != C10D_DIALECT_C)
        s->old_peers++;
}

/* The store hears who has left, as soon as the event at hand is dealt with. */
void server_tell_left(struct store_server *s)
{
    struct conn *c;

    while ((c = conns_take(&s->leaving))) {
        s->conns[c->peer] = NULL;
        hosts_left(s, c);
        feed(s, &(struct store_event){ .kind = STORE_LEFT, .peer = c->peer });
        s->numbers[s->free_numbers++] = c->peer;
        s->count--;
        if (c->known && c->decoder.dialect != C10D_DIALECT_C)
            s->old_peers--;
        conns_append(&s->gone, c);
        if (s->paused)
            server_listen(s, true);
    }
}

/* ---- feed and perform ---- */

static void reply(struct store_server *s, struct conn *c, const struct c10d_reply *r)
{
    int rc;

    s->stats.answers++;
    if (c != s->serving) {
        buf_clear(&s->one);
        rc = c10d_encode_reply(&s->one, r);
        if (rc == 0)
            conn_send(s, c, buf_span(&s->one));
    } else {
        rc = c10d_encode_reply(&s->out, r);
    }
    if (rc == MUSTER_EFULL)
        conn_too_much(s, c);
    else if (rc < 0)
        conn_refuse(s, c, "out of memory");
}

static void perform(struct store_server *s)
{
    for (size_t i = 0; i < s->fx.count; i++) {
        const struct store_effect *e = &s->fx.items[i];
        struct conn *c = e->peer < s->conns_size ? s->conns[e->peer] : NULL;

        if (!c || c->dead)
            continue;
        switch (e->kind) {
        case STORE_REPLY:
            reply(s, c, &e->reply);
            break;
        case STORE_CLOSE:
            conn_refuse(s, c, "at byte %llu: %s", (unsigned long long)s->at, e->reason);
            break;
        }
    }
}

static int try_feed(struct store_server *s, const struct store_event *ev)
{
    const int rc = store_step(s->store, ev, &s->fx);

    if (rc == 0)
        perform(s);
    return rc;
}

static void feed(struct store_server *s, const struct store_event *ev)
{
    if (try_feed(s, ev) < 0)
        trace(s->opts.trace, TRACE_ERROR, "store %s: out of memory", s->address);
}

int server_request(struct store_server *s, struct conn *c,
                   const struct c10d_request *req)
{
    const struct store_event ev = { .kind = STORE_REQUEST,
                                    .peer = c->peer,
                                    .request = req,
                                    .gives_up = c->decoder.dialect != C10D_DIALECT_C };

    int rc;

    if (hosts_take(s, c, req, &rc))
        return rc;
    if (stats_take(s, c, req))
        return 0;
    if (!s->hosts)
        return try_feed(s, &ev);
    hosts_before(s, req);
    rc = try_feed(s, &ev);
    if (rc == 0)
        hosts_after(s, req);
    return rc;
}

void server_set(struct store_server *s, const struct c10d_request *set)
{
    feed(s, &(struct store_event){
                .kind = STORE_REQUEST, .peer = UINT32_MAX, .request = set });
}

void server_send(struct store_server *s, struct conn *c, struct span bytes)
{
    s->stats.answers++;
    if (c != s->serving)
        conn_send(s, c, bytes);
    else if (buf_append_span(&s->out, bytes) < 0)
        conn_refuse(s, c, "out of memory");
}

void server_end_turn(struct store_server *s)
{
    server_tell_left(s);
    conns_free(&s->gone);
}

void store_server_wipe(struct store_server *s)
{
    feed(s, &(struct store_event){ .kind = STORE_WIPE });
    server_tell_left(s);
}
