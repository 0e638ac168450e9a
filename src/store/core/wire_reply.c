/* wire_reply.c - replies: encoded by servers, decoded by clients; see wire.h.
 *
 * Nothing on the wire says which request a reply answers: the client knows, since
 * replies come in the order of the requests. A reply states its own sizes, so the
 * decoder checks them before memory is allocated for them. */
#include <assert.h>
#include <inttypes.h>

#include "base/err.h"
#include "store/core/wire.h"
#include "store/core/wire_int.h"

static size_t reply_size(const struct c10d_reply *reply)
{
    switch (c10d_shapes[reply->op].reply[0]) {
    case '\0':
        return 0;
    case 'f':
        return 1;
    case 'w':
        return 4;
    case 'n':
        return 8;
    case 'b':
        return 8 + reply->value.n;
    case 'q':
        return reply->number > 0 ? 16 + reply->value.n : 8;
    case 'm':
        return reply->list.bytes.n;
    default: /* l */
        return 8 + reply->list.bytes.n;
    }
}

static void put_bytes_at(uint8_t *to, struct span s)
{
    if (s.n)
        memcpy(to, s.p, s.n);
}

int c10d_encode_reply(struct buf *out, const struct c10d_reply *reply)
{
    const size_t size = reply_size(reply);
    uint8_t *to = buf_room(out, size);

    assert((unsigned)reply->op < C10D_OP_COUNT);
    if (!to)
        return buf_room_err(out, size);
    switch (c10d_shapes[reply->op].reply[0]) {
    case '\0':
        return 0;
    case 'f':
        *to = (uint8_t)reply->number;
        break;
    case 'w':
        put_u32(to, reply->word);
        break;
    case 'n':
        put_u64(to, (uint64_t)reply->number);
        break;
    case 'b':
        put_u64(to, reply->value.n);
        put_bytes_at(to + 8, reply->value);
        break;
    case 'q':
        put_u64(to, (uint64_t)reply->number);
        if (reply->number > 0) {
            put_u64(to + 8, reply->value.n);
            put_bytes_at(to + 16, reply->value);
        }
        break;
    case 'm':
        put_bytes_at(to, reply->list.bytes);
        break;
    default: /* l */
        put_u64(to, reply->list.count);
        put_bytes_at(to + 8, reply->list.bytes);
    }
    buf_commit(out, size);
    return 0;
}

void c10d_reply_decoder_init(struct c10d_reply_decoder *d, enum c10d_op op,
                             size_t expect, size_t max_bytes)
{
    assert((unsigned)op < C10D_OP_COUNT);
    *d = (struct c10d_reply_decoder){ .op = op,
                                      .expect = expect,
                                      .max_bytes = max_bytes };
}

static int too_large(const struct c10d_reply_decoder *d, const char *what, uint64_t n,
                     struct muster_error *err)
{
    return err_set(err, MUSTER_EPROTO,
                   "the answer to %s announces %" PRIu64 " %s, the limit is %zu bytes",
                   c10d_op_name(d->op), n, what, d->max_bytes);
}

/* Takes one byte, of which only some values are valid. The errors are torch's, so that
 * a search for them finds what others have written about them. */
static int64_t reply_take_flag(const struct c10d_reply_decoder *d, const uint8_t *p,
                               struct c10d_reply *out, struct muster_error *err)
{
    const char *wanted = NULL;

    if (d->op == C10D_CHECK && p[0] > 1)
        wanted = "ready or not_ready response expected";
    if ((d->op == C10D_WAIT || d->op == C10D_BARRIER) && p[0] != 0)
        wanted = "Stop_waiting response is expected";
    if (d->op == C10D_CANCEL_WAIT && p[0] != 1)
        wanted = "wait_canceled response is expected";
    if (wanted)
        return err_set(err, MUSTER_EPROTO, "%s was answered 0x%02x: %s",
                       c10d_op_name(d->op), p[0], wanted);
    out->number = p[0];
    return 1;
}

/* A value at p[at]; returns where it ends, 0 for "more, please". */
static int64_t reply_take_value(const struct c10d_reply_decoder *d, const uint8_t *p,
                                size_t n, size_t at, struct c10d_reply *out,
                                struct muster_error *err)
{
    uint64_t len;

    assert(at <= n);
    if (n - at < 8)
        return 0;
    len = get_u64(p + at);
    if (len > d->max_bytes)
        return too_large(d, "bytes", len, err);
    if (n - at - 8 < len)
        return 0;
    out->value = span_of(p + at + 8, (size_t)len);
    return (int64_t)(at + 8 + (size_t)len);
}

static int64_t reply_take_popped(const struct c10d_reply_decoder *d, const uint8_t *p,
                                 size_t n, struct c10d_reply *out,
                                 struct muster_error *err)
{
    if (n < 8)
        return 0;
    out->number = (int64_t)get_u64(p);
    if (out->number < 0)
        return err_set(err, MUSTER_EPROTO,
                       "QUEUE_POP was answered with a queue length of %" PRId64,
                       out->number);
    return out->number == 0 ? 8 : reply_take_value(d, p, n, 8, out, err);
}

/* The reply to LIST_KEYS says how many elements follow; for MULTI_GET the client knows,
 * since it sent that many keys. */
static int64_t reply_take_list(struct c10d_reply_decoder *d, const uint8_t *p, size_t n,
                               bool counted, struct c10d_reply *out,
                               struct muster_error *err)
{
    const size_t first = counted ? 8 : 0;
    const uint64_t count = counted && n >= 8 ? get_u64(p) : d->expect;
    struct c10d_walk w = {
        .p = p, .n = n, .key_limit = d->max_bytes, .value_limit = d->max_bytes
    };

    if (n < first)
        return 0;
    if (count > d->max_bytes / 8 + 1) /* Each element takes 8 bytes at least. */
        return too_large(d, "elements", count, err);
    if (!d->in_list) {
        d->in_list = true;
        d->seen = first;
        d->left = count;
    }
    const bool done = c10d_walk(&w, &d->seen, &d->left);

    if (w.bad)
        return too_large(d, "bytes", w.bad, err);
    if (d->seen - first > d->max_bytes)
        return too_large(d, "bytes or more", d->seen - first, err);
    if (!done)
        return 0;
    out->list =
        (struct c10d_list){ span_of(p + first, d->seen - first), (size_t)count };
    return (int64_t)d->seen;
}

static int64_t reply_take(struct c10d_reply_decoder *d, const uint8_t *p, size_t n,
                          struct c10d_reply *out, struct muster_error *err)
{
    switch (c10d_shapes[d->op].reply[0]) {
    case 'f':
        return n < 1 ? 0 : reply_take_flag(d, p, out, err);
    case 'w':
        if (n < 4)
            return 0;
        out->word = get_u32(p);
        return 4;
    case 'n':
        if (n < 8)
            return 0;
        out->number = (int64_t)get_u64(p);
        return 8;
    case 'b':
        return reply_take_value(d, p, n, 0, out, err);
    case 'q':
        return reply_take_popped(d, p, n, out, err);
    case 'm':
        return reply_take_list(d, p, n, false, out, err);
    default: /* l */
        return reply_take_list(d, p, n, true, out, err);
    }
}

int64_t c10d_decode_reply(struct c10d_reply_decoder *d, const uint8_t *p, size_t n,
                          struct c10d_reply *out, bool *whole, struct muster_error *err)
{
    struct c10d_reply reply = { .op = d->op };
    int64_t used = 0;

    *whole = !c10d_has_reply(d->op) || (d->op == C10D_MULTI_GET && d->expect == 0);
    if (!*whole) {
        used = reply_take(d, p, n, &reply, err);
        if (used <= 0)
            return used;
        *whole = true;
    }
    d->in_list = false;
    d->seen = 0;
    *out = reply;
    return used;
}
