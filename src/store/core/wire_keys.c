/* wire_keys.c - see wire_keys.h. */
#include "store/core/wire_keys.h"

#include <assert.h>

#include "base/err.h"
#include "store/core/wire_int.h"

bool c10d_has_list(enum c10d_op op)
{
    const char first = c10d_shapes[op].request[0];

    return first == 'L' || first == 'P';
}

/* Whether a request has exactly one key. */
static bool c10d_has_key(enum c10d_op op)
{
    return c10d_shapes[op].request[0] == 'k';
}

bool c10d_may_block(enum c10d_op op)
{
    return op == C10D_GET || op == C10D_MULTI_GET || op == C10D_QUEUE_POP;
}

static uint8_t *prefixed_put(uint8_t *to, struct span s)
{
    if (s.n)
        memcpy(to, s.p, s.n);
    return to + s.n;
}

/* Reserves the room for all keys first, so that nothing can fail halfway. */
static int prefix_list(struct c10d_prefixed *out, const struct c10d_request *req,
                       struct span prefix)
{
    struct c10d_list list = req->list;
    const size_t size = list.bytes.n + list.count * prefix.n;
    uint8_t *to = buf_room(&out->bytes, size);
    struct span element;
    bool key = true;

    if (!to)
        return MUSTER_ENOMEM;
    while (c10d_list_next(&list, &element)) {
        const struct span before = key ? prefix : span_of(NULL, 0);

        put_u64(to, before.n + element.n);
        to = prefixed_put(prefixed_put(to + 8, before), element);
        key = req->op != C10D_MULTI_SET || !key;
    }
    buf_commit(&out->bytes, size);
    out->req.list.bytes = buf_span(&out->bytes);
    return 0;
}

int c10d_prefix_keys(struct c10d_prefixed *out, const struct c10d_request *req,
                     struct span prefix, struct muster_error *err)
{
    int rc = 0;

    out->req = *req;
    buf_init(&out->bytes, SIZE_MAX);
    if (prefix.n == 0)
        return 0;
    if (c10d_has_list(req->op)) {
        rc = prefix_list(out, req, prefix);
    } else if (c10d_has_key(req->op)) {
        uint8_t *to = buf_room(&out->bytes, prefix.n + req->key.n);

        if (!to)
            return err_nomem(err);
        (void)prefixed_put(prefixed_put(to, prefix), req->key);
        buf_commit(&out->bytes, prefix.n + req->key.n);
        out->req.key = buf_span(&out->bytes);
    }
    return rc < 0 ? err_nomem(err) : 0;
}

/* Copies the keys first, then the values behind them. The buffer moves when it grows,
 * so the spans are set only at the end. */
int c10d_request_copy(struct c10d_prefixed *out, const struct c10d_request *req,
                      struct span prefix, struct muster_error *err)
{
    const int rc = c10d_prefix_keys(out, req, prefix, err);
    struct c10d_request *r = &out->req;
    size_t keys;
    uint8_t *to;

    if (rc < 0)
        return rc;
    if (prefix.n == 0 &&
        buf_append_span(&out->bytes,
                        c10d_has_list(req->op) ? req->list.bytes : req->key) < 0)
        return err_nomem(err);
    keys = buf_len(&out->bytes);
    to = buf_room(&out->bytes, r->value.n + r->expected.n);
    if (!to)
        return err_nomem(err);
    (void)prefixed_put(prefixed_put(to, r->value), r->expected);
    buf_commit(&out->bytes, r->value.n + r->expected.n);
    to = out->bytes.mem;
    if (c10d_has_list(req->op))
        r->list.bytes = span_of(to, keys);
    else
        r->key = span_of(to, keys);
    r->value = span_of(to + keys, r->value.n);
    r->expected = span_of(to + keys + r->value.n, r->expected.n);
    return 0;
}

void c10d_prefixed_fini(struct c10d_prefixed *p)
{
    buf_fini(&p->bytes);
}

int c10d_strip_keys(struct buf *out, struct c10d_list list, struct span prefix,
                    size_t *count)
{
    struct span key;
    size_t n = 0;

    if (!buf_room(out, list.bytes.n)) /* The result is never longer. */
        return MUSTER_ENOMEM;
    while (c10d_list_next(&list, &key)) {
        if (key.n < prefix.n || !span_eq(span_of(key.p, prefix.n), prefix))
            continue;
        const int rc = c10d_list_add(out, span_of(key.p + prefix.n, key.n - prefix.n));
        assert(rc == 0);
        n++;
    }
    *count = n;
    return 0;
}

/* Appends what fits, with room for "..." and the terminator; false once it is full. */
static bool prefixed_show(struct span s, char *out, size_t size, size_t *at)
{
    static const char hex[] = "0123456789abcdef";

    for (size_t i = 0; i < s.n; i++) {
        const uint8_t c = s.p[i];
        const bool plain = c >= 0x20 && c < 0x7f && c != '\\';
        const size_t need = plain ? 1 : 4;

        if (size - *at < need + 4) {
            memcpy(out + *at, "...", 3);
            *at += 3;
            return false;
        }
        if (plain) {
            out[(*at)++] = (char)c;
        } else {
            const char escaped[4] = { '\\', 'x', hex[c >> 4], hex[c & 15] };

            memcpy(out + *at, escaped, sizeof escaped);
            *at += sizeof escaped;
        }
    }
    return true;
}

void c10d_keys_text(const struct c10d_request *req, char *out, size_t size)
{
    struct c10d_list list = req->list;
    struct span key, value;
    size_t at = 0;
    bool more = true;

    assert(size >= 4);
    if (c10d_has_key(req->op))
        (void)prefixed_show(req->key, out, size, &at);
    if (c10d_has_list(req->op)) {
        for (size_t i = 0; more && c10d_list_next(&list, &key); i++) {
            if (i)
                more = prefixed_show(span_str(", "), out, size, &at);
            more = more && prefixed_show(key, out, size, &at);
            if (req->op == C10D_MULTI_SET)
                (void)c10d_list_next(&list, &value);
        }
    }
    out[at] = '\0';
}
