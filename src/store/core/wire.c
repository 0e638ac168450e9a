/* wire.c - the c10d wire: operations, lists and encoding; see wire.h.
 *
 * Decoding is in wire_request.c and wire_reply.c. An encoder writes the whole message
 * or nothing. */
#include "store/core/wire.h"

#include <assert.h>
#include <inttypes.h>

#include "base/err.h"
#include "store/core/wire_int.h"

const struct c10d_shape c10d_shapes[C10D_OP_COUNT] = {
    [C10D_VALIDATE] = { "w", "" },       [C10D_SET] = { "kv", "" },
    [C10D_COMPARE_SET] = { "kev", "b" }, [C10D_GET] = { "k", "b" },
    [C10D_ADD] = { "kn", "n" },          [C10D_CHECK] = { "L", "f" },
    [C10D_WAIT] = { "L", "f" },          [C10D_GETNUMKEYS] = { "", "n" },
    [C10D_DELETE_KEY] = { "k", "n" },    [C10D_APPEND] = { "kv", "" },
    [C10D_MULTI_GET] = { "L", "m" },     [C10D_MULTI_SET] = { "P", "" },
    [C10D_CANCEL_WAIT] = { "", "f" },    [C10D_PING] = { "w", "w" },
    [C10D_QUEUE_PUSH] = { "kv", "" },    [C10D_QUEUE_POP] = { "k", "q" },
    [C10D_QUEUE_LEN] = { "k", "n" },     [C10D_LIST_KEYS] = { "", "l" },
    [C10D_BARRIER] = { "kn", "f" },
};

const char *c10d_op_name(enum c10d_op op)
{
    static const char *const names[C10D_OP_COUNT] = {
#define C10D_OP_NAME(name, code) [code] = #name,
        C10D_OPS(C10D_OP_NAME)
#undef C10D_OP_NAME
    };

    return (unsigned)op < C10D_OP_COUNT ? names[op] : "unknown operation";
}

bool c10d_has_reply(enum c10d_op op)
{
    assert((unsigned)op < C10D_OP_COUNT);
    return c10d_shapes[op].reply[0] != '\0';
}

bool c10d_list_next(struct c10d_list *list, struct span *element)
{
    uint64_t len;

    if (list->bytes.n == 0)
        return false;
    assert(list->bytes.n >= 8);
    len = get_u64(list->bytes.p);
    assert(len <= list->bytes.n - 8);
    *element = span_of(list->bytes.p + 8, (size_t)len);
    list->bytes.p += 8 + len;
    list->bytes.n -= 8 + (size_t)len;
    return true;
}

int c10d_list_add(struct buf *out, struct span element)
{
    uint8_t *to;

    if (element.n > SIZE_MAX - 8)
        return MUSTER_EFULL;
    to = buf_room(out, element.n + 8);
    if (!to)
        return buf_room_err(out, element.n + 8);
    put_u64(to, element.n);
    if (element.n)
        memcpy(to + 8, element.p, element.n);
    buf_commit(out, element.n + 8);
    return 0;
}

bool c10d_walk(struct c10d_walk *w, size_t *at, uint64_t *left)
{
    assert(*at <= w->n);
    w->bad = 0;
    for (; *left; --*left) {
        uint64_t len;

        if (w->n - *at < 8)
            return false;
        len = get_u64(w->p + *at);
        w->bad_is_value = *left % 2 == 1;
        if (len > (w->bad_is_value ? w->value_limit : w->key_limit)) {
            w->bad = len;
            return false;
        }
        if (w->n - *at - 8 < len)
            return false;
        *at += 8 + (size_t)len;
    }
    return true;
}

/* Checks the limits of torch's server, so that the caller gets an error: the server
 * would only close the connection. */
static int check_bytes(enum c10d_op op, const char *what, size_t len, size_t limit,
                       struct muster_error *err)
{
    if (len <= limit)
        return 0;
    return err_set(err, MUSTER_EINVAL,
                   "%s: the %s has %zu bytes; the store takes at most %zu",
                   c10d_op_name(op), what, len, limit);
}

static int check_list(const struct c10d_request *req, bool pairs,
                      struct muster_error *err)
{
    const struct c10d_list *list = &req->list;
    struct c10d_walk w = { .p = list->bytes.p,
                           .n = list->bytes.n,
                           .key_limit = C10D_MAX_KEY,
                           .value_limit = pairs ? C10D_MAX_VALUE : C10D_MAX_KEY };
    uint64_t left = list->count;
    size_t at = 0;

    if (list->count > C10D_MAX_KEYS)
        return err_set(err, MUSTER_EINVAL,
                       "%s: %zu keys in one call; the store takes at most %u",
                       c10d_op_name(req->op), list->count, C10D_MAX_KEYS);
    if (pairs)
        left *= 2;
    if (!c10d_walk(&w, &at, &left) && w.bad)
        return check_bytes(req->op, pairs && w.bad_is_value ? "value" : "key",
                           (size_t)w.bad,
                           (size_t)(w.bad_is_value ? w.value_limit : w.key_limit), err);
    if (left || at != list->bytes.n)
        return err_set(err, MUSTER_EINVAL, "%s: the list does not hold %zu elements",
                       c10d_op_name(req->op), list->count);
    return 0;
}

/* Checks the request and counts the bytes behind its opcode. */
static int measure_request(const struct c10d_request *req, size_t *size,
                           struct muster_error *err)
{
    int rc = 0;

    *size = 0;
    for (const char *f = c10d_shapes[req->op].request; *f && rc == 0; f++) {
        switch (*f) {
        case 'w':
            *size += 4;
            break;
        case 'n':
            *size += 8;
            break;
        case 'k':
            rc = check_bytes(req->op, "key", req->key.n, C10D_MAX_KEY, err);
            *size += 8 + req->key.n;
            break;
        case 'v':
            rc = check_bytes(req->op, "value", req->value.n, C10D_MAX_VALUE, err);
            *size += 8 + req->value.n;
            break;
        case 'e':
            rc = check_bytes(req->op, "expected value", req->expected.n, C10D_MAX_VALUE,
                             err);
            *size += 8 + req->expected.n;
            break;
        default: /* L, P */
            rc = check_list(req, *f == 'P', err);
            *size += 8 + req->list.bytes.n;
        }
    }
    return rc;
}

static uint8_t *put_bytes(uint8_t *to, struct span s)
{
    if (s.n)
        memcpy(to, s.p, s.n);
    return to + s.n;
}

static uint8_t *put_span(uint8_t *to, struct span s)
{
    put_u64(to, s.n);
    return put_bytes(to + 8, s);
}

int c10d_encode_request(struct buf *out, const struct c10d_request *req,
                        struct muster_error *err)
{
    size_t size;
    uint8_t *to;
    int rc;

    assert((unsigned)req->op < C10D_OP_COUNT);
    rc = measure_request(req, &size, err);
    if (rc < 0)
        return rc;
    to = buf_room(out, size + 1);
    if (!to)
        return buf_room_err(out, size + 1) == MUSTER_ENOMEM
                   ? err_nomem(err)
                   : err_set(err, MUSTER_EFULL,
                             "%s: no room for %zu bytes, since %zu others wait",
                             c10d_op_name(req->op), size + 1, buf_len(out));
    *to++ = (uint8_t)req->op;
    for (const char *f = c10d_shapes[req->op].request; *f; f++) {
        switch (*f) {
        case 'w':
            put_u32(to, req->word);
            to += 4;
            break;
        case 'n':
            put_u64(to, (uint64_t)req->number);
            to += 8;
            break;
        case 'k':
            to = put_span(to, req->key);
            break;
        case 'v':
            to = put_span(to, req->value);
            break;
        case 'e':
            to = put_span(to, req->expected);
            break;
        default: /* L, P */
            put_u64(to, req->list.count);
            to = put_bytes(to + 8, req->list.bytes);
        }
    }
    buf_commit(out, size + 1);
    return 0;
}
