/* v3_wire_encode.c - requests for the v3 gateway; see v3_wire.h. The JSON is written
 * directly: everything that is not a number or a fixed word is in base64 or escaped. */
#include "etcd/core/v3_wire.h"

#include <assert.h>
#include <inttypes.h>

#include "base/base64.h"

static void start(struct etcd_msg *out, const char *path)
{
    assert(buf_len(&out->path) == 0 && buf_len(&out->body) == 0);
    out->method = "POST";
    out->type = "application/json";
    buf_append(&out->path, path, strlen(path) + 1);
}

/* Appends before, then "name":"base64". */
static void put_bytes(struct buf *b, const char *before, const char *name,
                      struct span v)
{
    buf_printf(b, "%s\"%s\":\"", before, name);

    base64_encode(b, v);
    buf_u8(b, '"');
}

static void put_compare(struct buf *b, const struct etcd3_compare *c)
{
    static const struct {
        const char *target, *field;
    } names[] = {
        [ETCD3_CREATE] = { "CREATE", "create_revision" },
        [ETCD3_MOD] = { "MOD", "mod_revision" },
        [ETCD3_VALUE] = { "VALUE", "value" },
    };
    assert((size_t)c->target < ARRAY_LEN(names));
    put_bytes(b, "{", "key", c->key);

    buf_printf(b, ",\"target\":\"%s\",\"result\":\"EQUAL\"", names[c->target].target);
    if (c->target == ETCD3_VALUE)
        put_bytes(b, ",", "value", c->value);
    else
        buf_printf(b, ",\"%s\":\"%" PRId64 "\"", names[c->target].field, c->revision);
    buf_u8(b, '}');
}

static void put_op(struct buf *b, const struct etcd3_op *op)
{
    put_bytes(b, "{", "key", op->key);

    if (op->kind != ETCD3_PUT && op->end.n != 0)
        put_bytes(b, ",", "range_end", op->end);
    if (op->kind == ETCD3_PUT)
        put_bytes(b, ",", "value", op->value);
    if (op->kind == ETCD3_PUT && op->lease != 0)
        buf_printf(b, ",\"lease\":\"%" PRId64 "\"", op->lease);
    if (op->kind == ETCD3_RANGE && op->limit != 0)
        buf_printf(b, ",\"limit\":\"%" PRId64 "\"", op->limit);
    if (op->kind == ETCD3_RANGE && op->keys_only)
        buf_append_str(b, ",\"keys_only\":true");
    buf_u8(b, '}');
}

static void put_ops(struct buf *b, const char *before, const struct etcd3_op *ops,
                    size_t count)
{
    static const char *const names[] = {
        [ETCD3_RANGE] = "request_range",
        [ETCD3_PUT] = "request_put",
        [ETCD3_DELETE] = "request_delete_range",
    };
    buf_append_str(b, before);

    for (size_t i = 0; i < count; i++) {
        assert((size_t)ops[i].kind < ARRAY_LEN(names));
        buf_printf(b, "%s{\"%s\":", i ? "," : "", names[ops[i].kind]);
        put_op(b, &ops[i]);
        buf_u8(b, '}');
    }
}

int etcd3_encode_txn(struct etcd_msg *out, const struct etcd3_txn *txn)
{
    struct buf *b = &out->body;
    start(out, "/v3/kv/txn");

    buf_append_str(b, "{\"compare\":[");
    for (size_t i = 0; i < txn->compare_count; i++) {
        if (i)
            buf_u8(b, ',');
        put_compare(b, &txn->compare[i]);
    }
    put_ops(b, "],\"success\":[", txn->yes, txn->yes_count);
    put_ops(b, "],\"failure\":[", txn->no, txn->no_count);
    buf_append_str(b, "]}");
    return etcd_msg_error(out);
}

int etcd3_encode_range(struct etcd_msg *out, const struct etcd3_op *op)
{
    start(out, "/v3/kv/range");
    put_op(&out->body, op);
    return etcd_msg_error(out);
}

int etcd3_encode_grant(struct etcd_msg *out, int64_t id, int64_t ttl_s)
{
    assert(id > 0 && ttl_s > 0);
    start(out, "/v3/lease/grant");
    buf_printf(&out->body, "{\"ID\":\"%" PRId64 "\",\"TTL\":\"%" PRId64 "\"}", id,
               ttl_s);
    return etcd_msg_error(out);
}

int etcd3_encode_keepalive(struct etcd_msg *out, int64_t id)
{
    assert(id > 0);
    start(out, "/v3/lease/keepalive");
    buf_printf(&out->body, "{\"ID\":\"%" PRId64 "\"}", id);
    return etcd_msg_error(out);
}

int etcd3_encode_revoke(struct etcd_msg *out, int64_t id)
{
    assert(id > 0);
    start(out, "/v3/lease/revoke");
    buf_printf(&out->body, "{\"ID\":\"%" PRId64 "\"}", id);
    return etcd_msg_error(out);
}

/* Name and password are JSON text, not base64. Only what JSON requires is escaped. */
static void put_text(struct buf *b, const char *before, const char *name, struct span v)
{
    buf_printf(b, "%s\"%s\":\"", before, name);

    for (size_t i = 0; i < v.n; i++) {
        if (v.p[i] < 0x20)
            buf_printf(b, "\\u%04x", v.p[i]);
        else if (v.p[i] == '"' || v.p[i] == '\\')
            buf_printf(b, "\\%c", v.p[i]);
        else
            buf_u8(b, v.p[i]);
    }
    buf_u8(b, '"');
}

int etcd3_encode_auth(struct etcd_msg *out, struct span name, struct span password)
{
    start(out, "/v3/auth/authenticate");

    put_text(&out->body, "{", "name", name);
    put_text(&out->body, ",", "password", password);
    buf_u8(&out->body, '}');
    return etcd_msg_error(out);
}

int etcd3_encode_watch(struct etcd_msg *out, struct span key, struct span end,
                       bool only_ends, int64_t start_revision)
{
    struct buf *b = &out->body;
    start(out, "/v3/watch");

    put_bytes(b, "{\"create_request\":{", "key", key);
    if (end.n != 0)
        put_bytes(b, ",", "range_end", end);
    if (only_ends)
        buf_append_str(b, ",\"filters\":[\"NOPUT\"]");
    if (start_revision != 0)
        buf_printf(b, ",\"start_revision\":\"%" PRId64 "\"", start_revision);
    buf_append_str(b, "}}");
    return etcd_msg_error(out);
}

/* The last byte that is not 0xff is increased, and those behind it are dropped. If all
 * are 0xff, "\0" stands for the end of the key space. */
int etcd3_prefix_end(struct buf *out, struct span prefix)
{
    size_t n = prefix.n;
    int rc;

    while (n > 0 && prefix.p[n - 1] == 0xff)
        n--;
    if (n == 0)
        return buf_u8(out, 0);
    rc = buf_append(out, prefix.p, n - 1);
    return rc == 0 ? buf_u8(out, (uint8_t)(prefix.p[n - 1] + 1)) : rc;
}
