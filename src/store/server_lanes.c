/* server_lanes.c - connections of workers that come inside an encrypted one of their
 * agent (store/core/lanes.h). Each is a connection like any other, but without a
 * socket.
 *
 * All answers of a batch of events to the workers of one node are sent in one piece,
 * with one system call and one TLS record. */
#include "base/mem.h"
#include "store/core/lanes.h"
#include "store/server_int.h"

#define GATHERS (1u << 20) /* bytes; more are sent before the batch ends */

struct lanes {
    struct lanes_decoder decoder;
    struct conn **conns; /* the array is owned; NULL where no lane is open */
    size_t size;
    struct buf out;
    bool waits;        /* in the server's list `to_send` */
    struct conn *next; /* in that list */
};

bool server_lanes_take(struct store_server *s, struct conn *c,
                       const struct c10d_request *req)
{
    if (req->op != C10D_QUEUE_PUSH || !span_eq(req->key, span_str(LANES_KEY)))
        return false;
    if (!c->tls || c->extension.run || !span_eq(req->value, span_str(LANES_VERSION))) {
        conn_refuse(s, c,
                    "it wants to carry workers' connections, but it is not encrypted, "
                    "or has another version");
        return true;
    }
    c->lanes = mem_calloc(1, sizeof *c->lanes);
    if (!c->lanes)
        conn_refuse(s, c, "out of memory");
    else
        buf_init(&c->lanes->out, SIZE_MAX);
    return true;
}

void server_lanes_free(struct store_server *s, struct conn *c)
{
    struct lanes *l = c->lanes;

    if (!l)
        return;
    for (struct conn **at = &s->to_send; l->waits && *at; at = &(*at)->lanes->next)
        if (*at == c) {
            *at = l->next;
            break;
        }
    for (size_t i = 0; i < l->size; i++)
        if (l->conns[i])
            conn_close(s, l->conns[i]);
    mem_free(l->conns);
    buf_fini(&l->out);
    mem_free(l);
    c->lanes = NULL;
}

void server_lanes_flush(struct store_server *s)
{
    struct conn *c;

    while ((c = s->to_send)) {
        s->to_send = c->lanes->next;
        c->lanes->waits = false;
        conn_send(s, c, buf_span(&c->lanes->out));
        if (!c->dead)
            buf_clear(&c->lanes->out);
        if (!c->dead && c->lanes->out.size > GATHERS)
            buf_fini(&c->lanes->out);
    }
}

/* The carrier has something to send: does so at the end of the turn, or at once. */
static void send_soon(struct store_server *s, struct conn *carrier)
{
    struct lanes *l = carrier->lanes;

    if (!l->waits) {
        l->waits = true;
        l->next = s->to_send;
        s->to_send = carrier;
    }
    if (!s->in_turn || buf_len(&l->out) >= GATHERS)
        server_lanes_flush(s);
}

ssize_t server_lanes_write(struct store_server *s, struct conn *c, struct span bytes)
{
    struct buf *out = &c->carrier->lanes->out;
    const size_t n = MIN_OF(bytes.n, c->room);

    if (n == 0)
        return 0;
    if (lanes_put(out, LANE_DATA, c->lane, n) < 0 || buf_append(out, bytes.p, n) < 0) {
        conn_close(s, c->carrier); /* Its output may end in a partial frame. */
        return -1;
    }
    c->room -= (uint32_t)n;
    send_soon(s, c->carrier);
    return c->dead ? -1 : (ssize_t)n;
}

void server_lanes_closed(struct store_server *s, struct conn *c)
{
    struct conn *carrier = c->carrier;

    if (carrier->dead)
        return;
    carrier->lanes->conns[c->lane] = NULL;
    if (lanes_put(&carrier->lanes->out, LANE_CLOSE, c->lane, 0) < 0)
        conn_close(s, carrier);
    else
        send_soon(s, carrier);
}

static void lanes_open_one(struct store_server *s, struct conn *carrier, uint32_t lane)
{
    struct lanes *l = carrier->lanes;
    struct conn *c;

    if (lane >= l->size) {
        struct conn **conns = mem_grow_to(l->conns, &l->size, lane, sizeof *conns);

        if (!conns) {
            conn_refuse(s, carrier, "out of memory");
            return;
        }
        l->conns = conns;
    }
    c = l->conns[lane] ? NULL : server_new_conn(s);
    if (!c) {
        conn_refuse(s, carrier,
                    l->conns[lane] ? "it opens a lane twice" : "out of memory");
        return;
    }
    c->fd = -1;
    c->carrier = carrier;
    c->lane = lane;
    c->room = LANES_WINDOW;
    l->conns[lane] = c;
    server_auth_carried(s, c);
    server_take_conn(s, c);
}

static void lanes_on_frame(struct store_server *s, struct conn *carrier,
                           const struct lane_frame *f)
{
    struct lanes *l = carrier->lanes;
    struct conn *c = f->lane < l->size ? l->conns[f->lane] : NULL;

    if (f->kind == LANE_OPEN) {
        lanes_open_one(s, carrier, f->lane);
        return;
    }
    if (!c) /* We closed it, and the other side did not know yet. */
        return;
    switch (f->kind) {
    case LANE_DATA:
        conn_take(s, c, f->data);
        break;
    case LANE_ROOM:
        if (f->count > LANES_WINDOW - c->room) {
            conn_refuse(s, carrier, "it gives a lane more room than the window has");
            return;
        }
        c->room += f->count;
        conn_flush(s, c);
        break;
    case LANE_OPEN:
    case LANE_CLOSE:
        conn_end(s, c);
        break;
    }
}

void server_lanes_bytes(struct store_server *s, struct conn *carrier, struct span bytes)
{
    struct muster_error err;
    struct lane_frame f;

    while (!carrier->dead && bytes.n) {
        const int64_t took = lanes_decode(&carrier->lanes->decoder, bytes, &f, &err);

        if (took < 0)
            conn_refuse(s, carrier, "%s", err.text);
        if (took <= 0)
            return;
        bytes = span_of(bytes.p + took, bytes.n - (size_t)took);
        lanes_on_frame(s, carrier, &f);
    }
}
