/* state_pickle_write.c - the canonical pickle of a state; see state_pickle.h.
 *
 * The layout is CPython's, so that the bytes equal torch's wherever torch also shares
 * equal nodes. Every MEMOIZE takes the next number, and a value that comes again is
 * fetched by its number. */
#include "base/base64.h"

#include <assert.h>

#include "base/py/datetime.h"
#include "rendezvous/core/state_pickle_int.h"

#define NO_MEMO    UINT32_MAX
#define BATCH      1000u
#define FRAME_MOST 65536u

struct pickler {
    struct buf *out;
    size_t base;   /* where in out the pickle begins */
    uint32_t memo; /* the next free number */
    uint32_t node_class, node_attr[3];
    uint32_t time_module, time_class, utc;
    int rc; /* of the first append that failed; later ones do nothing */
};

static void bytes(struct pickler *w, const void *p, size_t n)
{
    if (w->rc == 0)
        w->rc = buf_append(w->out, p, n);
}

static void op(struct pickler *w, enum pickle_op o)
{
    const uint8_t b = (uint8_t)o;

    bytes(w, &b, 1);
}

static uint32_t memoize(struct pickler *w)
{
    op(w, OP_MEMOIZE);
    return w->memo++;
}

static void get(struct pickler *w, uint32_t i)
{
    uint8_t b[5] = { OP_BINGET, (uint8_t)i };

    assert(i < w->memo);
    if (i < 256) {
        bytes(w, b, 2);
        return;
    }
    b[0] = OP_LONG_BINGET;
    put_u32(b + 1, i);
    bytes(w, b, 5);
}

static uint32_t string(struct pickler *w, struct span s)
{
    uint8_t head[5] = { OP_SHORT_BINUNICODE, (uint8_t)s.n };

    if (s.n < 256) {
        bytes(w, head, 2);
    } else {
        head[0] = OP_BINUNICODE;
        put_u32(head + 1, (uint32_t)s.n);
        bytes(w, head, 5);
    }
    bytes(w, s.p, s.n);
    return memoize(w);
}

/* Writes the string in full the first time, and by its memo after that. */
static void name(struct pickler *w, const char *text, uint32_t *memo)
{
    if (*memo == NO_MEMO)
        *memo = string(w, span_str(text));
    else
        get(w, *memo);
}

static void integer(struct pickler *w, int64_t v)
{
    uint8_t b[10];
    size_t n = 8;

    assert(w->memo > 0);
    if (v >= 0 && v < 256) {
        b[0] = OP_BININT1;
        b[1] = (uint8_t)v;
        bytes(w, b, 2);
    } else if (v >= 0 && v < 65536) {
        b[0] = OP_BININT2;
        b[1] = (uint8_t)v;
        b[2] = (uint8_t)(v >> 8);
        bytes(w, b, 3);
    } else if (v >= INT32_MIN && v <= INT32_MAX) {
        b[0] = OP_BININT;
        put_u32(b + 1, (uint32_t)v);
        bytes(w, b, 5);
    } else {
        b[0] = OP_LONG1;
        put_u64(b + 2, (uint64_t)v);
        /* Like Python, drop the bytes that only repeat the sign. */
        while (n > 1 && b[n + 1] == (b[n] & 0x80 ? 0xff : 0))
            n--;
        b[1] = (uint8_t)n;
        bytes(w, b, n + 2);
    }
}

static void boolean(struct pickler *w, bool v)
{
    op(w, v ? OP_NEWTRUE : OP_NEWFALSE);
}

static void utc(struct pickler *w)
{
    if (w->utc != NO_MEMO) {
        get(w, w->utc);
        return;
    }
    get(w, w->time_module);
    (void)string(w, span_str("timezone"));
    op(w, OP_STACK_GLOBAL);
    (void)memoize(w);
    get(w, w->time_module);
    (void)string(w, span_str("timedelta"));
    op(w, OP_STACK_GLOBAL);
    (void)memoize(w);
    for (int i = 0; i < 3; i++)
        integer(w, 0);
    op(w, OP_TUPLE3);
    (void)memoize(w);
    op(w, OP_REDUCE);
    (void)memoize(w);
    op(w, OP_TUPLE1);
    (void)memoize(w);
    op(w, OP_REDUCE);
    w->utc = memoize(w);
}

/* Returns the offset of its ten bytes. */
static uint32_t moment(struct pickler *w, int64_t us)
{
    uint32_t at;
    uint8_t b[2 + PYTIME_BYTES] = { OP_SHORT_BINBYTES, PYTIME_BYTES };

    if (w->time_class == NO_MEMO) {
        w->time_module = string(w, span_str("datetime"));
        (void)string(w, span_str("datetime"));
        op(w, OP_STACK_GLOBAL);
        w->time_class = memoize(w);
    } else {
        get(w, w->time_class);
    }
    assert(w->time_module != NO_MEMO && w->time_class != NO_MEMO);
    py_datetime_write(b + 2, us);
    at = (uint32_t)(buf_len(w->out) - w->base + 2);
    assert(buf_len(w->out) >= w->base);
    bytes(w, b, sizeof b);
    (void)memoize(w);
    utc(w);
    op(w, OP_TUPLE2);
    (void)memoize(w);
    op(w, OP_REDUCE);
    (void)memoize(w);
    return at;
}

static void node(struct pickler *w, struct participant *m)
{
    if (m->memo != NO_MEMO) {
        get(w, m->memo);
        return;
    }
    if (w->node_class == NO_MEMO) {
        get(w, 0); /* the module's name, which comes first of all */
        (void)string(w, span_str("_NodeDesc"));
        op(w, OP_STACK_GLOBAL);
        w->node_class = memoize(w);
    } else {
        get(w, w->node_class);
    }
    op(w, OP_EMPTY_TUPLE);
    op(w, OP_NEWOBJ);
    m->memo = memoize(w);
    op(w, OP_EMPTY_DICT);
    (void)memoize(w);
    op(w, OP_MARK);
    name(w, "addr", &w->node_attr[0]);
    (void)string(w, m->node.addr);
    name(w, "pid", &w->node_attr[1]);
    integer(w, m->node.pid);
    name(w, "local_id", &w->node_attr[2]);
    integer(w, m->node.local_id);
    op(w, OP_SETITEMS);
    op(w, OP_BUILD);
}

static void item(struct pickler *w, struct participant *m, enum rdzv_list list)
{
    node(w, m);
    if (list == RDZV_PLACES)
        integer(w, m->rank);
    if (list == RDZV_BEATS)
        m->beat_at = moment(w, m->beat_us);
}

/* A map or set, in batches as CPython cuts them. */
static void list(struct pickler *w, const char *title, const struct rdzv_state *s,
                 enum rdzv_list which)
{
    const bool map = which == RDZV_PLACES || which == RDZV_BEATS;
    struct participant *m = rdzv_first(s, which);

    (void)string(w, span_str(title));
    op(w, map ? OP_EMPTY_DICT : OP_EMPTY_SET);
    (void)memoize(w);
    assert((m != NULL) == (rdzv_count(s, which) > 0));
    if (map && rdzv_count(s, which) == 1) {
        item(w, m, which);
        op(w, OP_SETITEM);
        return;
    }
    while (m && w->rc == 0) {
        op(w, OP_MARK);
        for (unsigned i = 0; m && i < BATCH; i++, m = m->next[which])
            item(w, m, which);
        op(w, map ? OP_SETITEMS : OP_ADDITEMS);
    }
}

static void state(struct pickler *w, struct rdzv_state *s)
{
    (void)string(w, span_str(PICKLE_MODULE));
    (void)string(w, span_str("_RendezvousState"));
    op(w, OP_STACK_GLOBAL);
    (void)memoize(w);
    op(w, OP_EMPTY_TUPLE);
    op(w, OP_NEWOBJ);
    (void)memoize(w);
    op(w, OP_EMPTY_DICT);
    (void)memoize(w);
    op(w, OP_MARK);
    (void)string(w, span_str("round"));
    integer(w, s->round);
    (void)string(w, span_str("complete"));
    boolean(w, s->complete);
    (void)string(w, span_str("deadline"));
    s->deadline_at = 0;
    if (s->deadline_us == WALL_NEVER)
        op(w, OP_NONE);
    else
        s->deadline_at = moment(w, s->deadline_us);
    (void)string(w, span_str("closed"));
    boolean(w, s->closed);
    list(w, "participants", s, RDZV_PLACES);
    list(w, "wait_list", s, RDZV_WAITS);
    list(w, "redundancy_list", s, RDZV_SPARES);
    list(w, "last_heartbeats", s, RDZV_BEATS);
    op(w, OP_SETITEMS);
    op(w, OP_BUILD);
    op(w, OP_STOP);
}

#define FRAME_HEAD 9u

/* Adds one frame if everything fits into one, and none otherwise: every reader accepts
 * a pickle without frames. */
static int frame(struct buf *out, size_t head, struct rdzv_state *s)
{
    const size_t n = buf_len(out) - head;
    uint8_t b[FRAME_HEAD] = { OP_FRAME };
    uint8_t *p;

    assert(head <= buf_len(out));
    if (n > FRAME_MOST)
        return 0;
    if (!buf_room(out, sizeof b))
        return buf_room_err(out, sizeof b);
    buf_commit(out, sizeof b);
    p = out->mem + out->head + head;
    memmove(p + sizeof b, p, n);
    put_u64(b + 1, n);
    memcpy(p, b, sizeof b);
    for (struct participant *m = rdzv_first(s, RDZV_BEATS); m; m = m->next[RDZV_BEATS])
        m->beat_at += FRAME_HEAD;
    s->deadline_at += s->deadline_at ? FRAME_HEAD : 0;
    return 0;
}

int pickle_write(struct rdzv_state *s, struct buf *out)
{
    struct pickler w = { .out = out,
                         .base = buf_len(out),
                         .node_class = NO_MEMO,
                         .node_attr = { NO_MEMO, NO_MEMO, NO_MEMO },
                         .time_module = NO_MEMO,
                         .time_class = NO_MEMO,
                         .utc = NO_MEMO };
    const uint8_t proto[] = { OP_PROTO, 4 };
    size_t head;

    for (unsigned l = 0; l < RDZV_LISTS; l++) {
        for (struct participant *m = s->list[l].first; m; m = m->next[l])
            m->memo = NO_MEMO;
    }
    bytes(&w, proto, sizeof proto);
    head = buf_len(out);
    state(&w, s);
    assert(w.rc < 0 || buf_len(out) > head);
    return w.rc < 0 ? w.rc : frame(out, head, s);
}

int pickle_write_text(struct rdzv_state *s, struct buf *out)
{
    struct buf raw;
    int rc;

    buf_init(&raw, PICKLE_MAX_BYTES);
    rc = pickle_write(s, &raw);
    if (rc == 0)
        rc = base64_encode(out, buf_span(&raw));
    buf_fini(&raw);
    return rc;
}
