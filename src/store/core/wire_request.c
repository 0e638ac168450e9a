/* wire_request.c - requests from bytes, for servers; see wire.h.
 *
 * A request without a list has at most three fields, so it is read from its start each
 * time more bytes come. A list may have 131072 elements, so there the decoder remembers
 * how far it got. A length is checked against its limit as soon as it has come, before
 * its data. */
#include <assert.h>
#include <inttypes.h>

#include "base/err.h"
#include "store/core/wire.h"
#include "store/core/wire_int.h"

void c10d_decoder_init(struct c10d_decoder *d)
{
    *d = (struct c10d_decoder){ .old = C10D_DIALECT_B };
}

/* Opcodes of PyTorch 2.1; those of 1.9 to 2.0 are the same up to 6. */
static const enum c10d_op ops_b[] = {
    C10D_SET,    C10D_COMPARE_SET, C10D_GET,        C10D_ADD,
    C10D_CHECK,  C10D_WAIT,        C10D_GETNUMKEYS, C10D_DELETE_KEY,
    C10D_APPEND, C10D_MULTI_GET,   C10D_MULTI_SET,  C10D_CANCEL_WAIT,
};

static bool looks_like_http(const uint8_t *p, size_t n)
{
    static const char *const starts[] = { "GET ", "POST", "PUT ", "HEAD",
                                          "OPTI", "DELE", "PRI " };

    for (size_t i = 0; n >= 4 && i < ARRAY_LEN(starts); i++)
        if (memcmp(p, starts[i], 4) == 0)
            return true;
    return false;
}

static int wrong_service(const uint8_t *p, size_t n, struct muster_error *err)
{
    const char *guess = "";

    if (looks_like_http(p, n))
        guess = " (it looks like HTTP)";
    else if (n >= 2 && p[0] == 0x16 && p[1] == 3)
        guess = " (it looks like TLS)";
    return err_set(err, MUSTER_EPROTO,
                   "at byte 0: the first byte is 0x%02x: not a c10d store client%s",
                   p[0], guess);
}

/* Finds the dialect from the peer's first bytes: clients of PyTorch 2.2 and later begin
 * with VALIDATE, whose magic, read as the key length of an older SET, would be a
 * gigabyte. 1 once known, 0 if more bytes are needed. */
static int recognise(struct c10d_decoder *d, const uint8_t *p, size_t n,
                     struct muster_error *err)
{
    assert(n > 0 && d->dialect == C10D_DIALECT_UNKNOWN);
    if (p[0] != 0) {
        if (p[0] >= ARRAY_LEN(ops_b))
            return wrong_service(p, n, err);
        d->dialect = d->old;
        return 1;
    }
    if (n < 5)
        return 0;
    if (get_u32(p + 1) == C10D_MAGIC) {
        d->dialect = C10D_DIALECT_C;
        return 1;
    }
    if (get_u32(p + 1) > C10D_MAX_KEY)
        return err_set(err, MUSTER_EPROTO,
                       "at byte 1: wrong magic 0x%08" PRIx32 " in VALIDATE: not a c10d "
                       "store client, or one of another byte order",
                       get_u32(p + 1));
    d->dialect = d->old;
    return 1;
}

static int request_opcode(struct c10d_decoder *d, uint8_t code, enum c10d_op *op,
                          struct muster_error *err)
{
    const size_t codes =
        d->dialect == C10D_DIALECT_C ? (size_t)C10D_OP_COUNT : ARRAY_LEN(ops_b);

    if (code >= codes)
        return err_set(err, MUSTER_EPROTO, "at byte %" PRIu64 ": unknown opcode 0x%02x",
                       d->offset, code);
    if (d->dialect == C10D_DIALECT_C) {
        *op = (enum c10d_op)code;
        if (*op == C10D_VALIDATE && d->validated)
            return err_set(err, MUSTER_EPROTO, "at byte %" PRIu64 ": a second VALIDATE",
                           d->offset);
        return 0;
    }
    if (code >= 9)
        d->dialect = C10D_DIALECT_B; /* Dialect A has no such opcodes. */
    if (d->dialect == C10D_DIALECT_A && code == 7)
        /* Taking it for the DELETE_KEY of B would delete the key to be watched. */
        return err_set(err, MUSTER_EPROTO,
                       "at byte %" PRIu64 ": WATCH_KEY of PyTorch 2.0 and older is not "
                       "supported",
                       d->offset);
    *op = d->dialect == C10D_DIALECT_A && code == 8 ? C10D_DELETE_KEY : ops_b[code];
    return 0;
}

/* Where we are in a request that may not be whole yet. */
struct cursor {
    const uint8_t *p;
    size_t n, at;
    const struct c10d_decoder *d;
    enum c10d_op op;
};

static int too_long(const struct cursor *c, const char *what, uint64_t len,
                    uint64_t limit, struct muster_error *err)
{
    return err_set(err, MUSTER_EPROTO,
                   "at byte %" PRIu64 ": %s announces %s of %" PRIu64
                   ", the limit is %" PRIu64,
                   c->d->offset + c->at, c10d_op_name(c->op), what, len, limit);
}

/* 1 with the number, 0 for "more, please". */
static int request_take_u64(struct cursor *c, uint64_t *v)
{
    assert(c->at <= c->n);
    if (c->n - c->at < 8)
        return 0;
    *v = get_u64(c->p + c->at);
    c->at += 8;
    return 1;
}

static int request_take_bytes(struct cursor *c, const char *what, uint64_t limit,
                              struct span *out, struct muster_error *err)
{
    const size_t start = c->at;
    uint64_t len;

    if (!request_take_u64(c, &len))
        return 0;
    if (len > limit) {
        c->at = start;
        return too_long(c, what, len, limit, err);
    }
    if (c->n - c->at < len)
        return 0;
    *out = span_of(c->p + c->at, (size_t)len);
    c->at += (size_t)len;
    return 1;
}

static int request_take_list(struct cursor *c, struct c10d_decoder *d, bool pairs,
                             struct c10d_list *out, struct muster_error *err)
{
    struct c10d_walk w = { .p = c->p,
                           .n = c->n,
                           .key_limit = C10D_MAX_KEY,
                           .value_limit = pairs ? C10D_MAX_VALUE : C10D_MAX_KEY };
    const size_t first = c->at + 8;
    uint64_t count;

    if (!request_take_u64(c, &count))
        return 0;
    if (count > C10D_MAX_KEYS) {
        c->at -= 8;
        return too_long(c, "a number of keys", count, C10D_MAX_KEYS, err);
    }
    if (!d->in_list) {
        d->in_list = true;
        d->seen = first;
        d->left = pairs ? 2 * count : count;
    }
    if (!c10d_walk(&w, &d->seen, &d->left)) {
        c->at = d->seen;
        return w.bad == 0
                   ? 0
                   : too_long(c, pairs && w.bad_is_value ? "a value" : "a key", w.bad,
                              w.bad_is_value ? w.value_limit : w.key_limit, err);
    }
    c->at = d->seen;
    assert(c->at >= first && c->at <= c->n && d->left == 0);
    *out = (struct c10d_list){ span_of(c->p + first, c->at - first), (size_t)count };
    return 1;
}

static int request_take_field(struct cursor *c, struct c10d_decoder *d, char field,
                              struct c10d_request *out, struct muster_error *err)
{
    uint64_t number;

    switch (field) {
    case 'k':
        return request_take_bytes(c, "a key", C10D_MAX_KEY, &out->key, err);
    case 'v':
        return request_take_bytes(c, "a value", C10D_MAX_VALUE, &out->value, err);
    case 'e':
        return request_take_bytes(c, "an expected value", C10D_MAX_VALUE,
                                  &out->expected, err);
    case 'n':
        if (!request_take_u64(c, &number))
            return 0;
        out->number = (int64_t)number;
        return 1;
    case 'w':
        if (c->n - c->at < 4)
            return 0;
        out->word = get_u32(c->p + c->at);
        c->at += 4;
        return 1;
    default: /* L, P */
        return request_take_list(c, d, field == 'P', &out->list, err);
    }
}

int64_t c10d_decode_request(struct c10d_decoder *d, const uint8_t *p, size_t n,
                            struct c10d_request *out, struct muster_error *err)
{
    struct c10d_request req = { 0 };
    struct cursor c = { .p = p, .n = n, .at = 1, .d = d };
    int rc = 1;

    if (n == 0)
        return 0;
    if (d->dialect == C10D_DIALECT_UNKNOWN)
        rc = recognise(d, p, n, err);
    if (rc <= 0)
        return rc;
    rc = request_opcode(d, p[0], &req.op, err);
    if (rc < 0)
        return rc;
    c.op = req.op;
    for (const char *f = c10d_shapes[req.op].request; *f; f++) {
        rc = request_take_field(&c, d, *f, &req, err);
        if (rc <= 0)
            return rc;
    }
    assert(c.at <= n);
    req.name = reserved_parse(req.key);
    d->validated = true; /* A new client began with VALIDATE; an old one has none. */
    d->in_list = false;
    d->seen = 0;
    d->offset += c.at;
    *out = req;
    return (int64_t)c.at;
}
