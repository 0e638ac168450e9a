/* etcd3_encode.c - requests for the v3 gateway; see etcd3.h. The bodies are written by
 * hand: all that is not a number or a fixed word is base64 or escaped below. */
#include "etcd/core/v3_wire.h"

#include <inttypes.h>

#include "base/base64.h"

static int start(struct etcd_msg *out, const char *path)
{
    out->method = "POST";
    out->type = "application/json";
    return buf_append(&out->path, path, strlen(path) + 1);
}

/* "name":"base64" behind before. */
static int put_bytes(struct buf *b, const char *before, const char *name, struct span v)
{
    int rc = buf_printf(b, "%s\"%s\":\"", before, name);

    if (rc == 0)
        rc = base64_encode(b, v);
    return rc == 0 ? buf_u8(b, '"') : rc;
}

static int put_compare(struct buf *b, const struct etcd3_compare *c)
{
    static const struct {
        const char *target, *field;
    } names[] = {
        [ETCD3_CREATE] = { "CREATE", "create_revision" },
        [ETCD3_MOD] = { "MOD", "mod_revision" },
        [ETCD3_VALUE] = { "VALUE", "value" },
    };
    int rc = put_bytes(b, "{", "key", c->key);

    if (rc == 0)
        rc = buf_printf(b, ",\"target\":\"%s\",\"result\":\"EQUAL\"",
                        names[c->target].target);
    if (rc == 0 && c->target == ETCD3_VALUE)
        rc = put_bytes(b, ",", "value", c->value);
    else if (rc == 0)
        rc = buf_printf(b, ",\"%s\":\"%" PRId64 "\"", names[c->target].field,
                        c->revision);
    return rc == 0 ? buf_u8(b, '}') : rc;
}

static int put_op(struct buf *b, const struct etcd3_op *op)
{
    int rc = put_bytes(b, "{", "key", op->key);

    if (rc == 0 && op->kind != ETCD3_PUT && op->end.n != 0)
        rc = put_bytes(b, ",", "range_end", op->end);
    if (rc == 0 && op->kind == ETCD3_PUT)
        rc = put_bytes(b, ",", "value", op->value);
    if (rc == 0 && op->kind == ETCD3_PUT && op->lease != 0)
        rc = buf_printf(b, ",\"lease\":\"%" PRId64 "\"", op->lease);
    if (rc == 0 && op->kind == ETCD3_RANGE && op->limit != 0)
        rc = buf_printf(b, ",\"limit\":\"%" PRId64 "\"", op->limit);
    if (rc == 0 && op->kind == ETCD3_RANGE && op->keys_only)
        rc = buf_append_str(b, ",\"keys_only\":true");
    return rc == 0 ? buf_u8(b, '}') : rc;
}

static int put_ops(struct buf *b, const char *before, const struct etcd3_op *ops,
                   size_t count)
{
    static const char *const names[] = {
        [ETCD3_RANGE] = "request_range",
        [ETCD3_PUT] = "request_put",
        [ETCD3_DELETE] = "request_delete_range",
    };
    int rc = buf_append_str(b, before);

    for (size_t i = 0; rc == 0 && i < count; i++) {
        rc = buf_printf(b, "%s{\"%s\":", i ? "," : "", names[ops[i].kind]);
        if (rc == 0)
            rc = put_op(b, &ops[i]);
        if (rc == 0)
            rc = buf_u8(b, '}');
    }
    return rc;
}

int etcd3_encode_txn(struct etcd_msg *out, const struct etcd3_txn *txn)
{
    struct buf *b = &out->body;
    int rc = start(out, "/v3/kv/txn");

    if (rc == 0)
        rc = buf_append_str(b, "{\"compare\":[");
    for (size_t i = 0; rc == 0 && i < txn->compare_count; i++) {
        if (i)
            rc = buf_u8(b, ',');
        if (rc == 0)
            rc = put_compare(b, &txn->compare[i]);
    }
    if (rc == 0)
        rc = put_ops(b, "],\"success\":[", txn->yes, txn->yes_count);
    if (rc == 0)
        rc = put_ops(b, "],\"failure\":[", txn->no, txn->no_count);
    return rc == 0 ? buf_append_str(b, "]}") : rc;
}

int etcd3_encode_range(struct etcd_msg *out, const struct etcd3_op *op)
{
    const int rc = start(out, "/v3/kv/range");

    return rc == 0 ? put_op(&out->body, op) : rc;
}

int etcd3_encode_grant(struct etcd_msg *out, int64_t id, int64_t ttl_s)
{
    const int rc = start(out, "/v3/lease/grant");

    return rc < 0 ? rc
                  : buf_printf(&out->body,
                               "{\"ID\":\"%" PRId64 "\",\"TTL\":\"%" PRId64 "\"}", id,
                               ttl_s);
}

int etcd3_encode_keepalive(struct etcd_msg *out, int64_t id)
{
    const int rc = start(out, "/v3/lease/keepalive");

    return rc < 0 ? rc : buf_printf(&out->body, "{\"ID\":\"%" PRId64 "\"}", id);
}

int etcd3_encode_revoke(struct etcd_msg *out, int64_t id)
{
    const int rc = start(out, "/v3/lease/revoke");

    return rc < 0 ? rc : buf_printf(&out->body, "{\"ID\":\"%" PRId64 "\"}", id);
}

/* Name and password are JSON text, not base64: escape what JSON asks for, and pass the
 * user's bytes on otherwise. */
static int put_text(struct buf *b, const char *before, const char *name, struct span v)
{
    int rc = buf_printf(b, "%s\"%s\":\"", before, name);

    for (size_t i = 0; rc == 0 && i < v.n; i++) {
        if (v.p[i] < 0x20)
            rc = buf_printf(b, "\\u%04x", v.p[i]);
        else if (v.p[i] == '"' || v.p[i] == '\\')
            rc = buf_printf(b, "\\%c", v.p[i]);
        else
            rc = buf_u8(b, v.p[i]);
    }
    return rc == 0 ? buf_u8(b, '"') : rc;
}

int etcd3_encode_auth(struct etcd_msg *out, struct span name, struct span password)
{
    int rc = start(out, "/v3/auth/authenticate");

    if (rc == 0)
        rc = put_text(&out->body, "{", "name", name);
    if (rc == 0)
        rc = put_text(&out->body, ",", "password", password);
    return rc == 0 ? buf_u8(&out->body, '}') : rc;
}

int etcd3_encode_watch(struct etcd_msg *out, struct span key, struct span end,
                       bool only_ends, int64_t start_revision)
{
    struct buf *b = &out->body;
    int rc = start(out, "/v3/watch");

    if (rc == 0)
        rc = put_bytes(b, "{\"create_request\":{", "key", key);
    if (rc == 0 && end.n != 0)
        rc = put_bytes(b, ",", "range_end", end);
    if (rc == 0 && only_ends)
        rc = buf_append_str(b, ",\"filters\":[\"NOPUT\"]");
    if (rc == 0 && start_revision != 0)
        rc = buf_printf(b, ",\"start_revision\":\"%" PRId64 "\"", start_revision);
    return rc == 0 ? buf_append_str(b, "}}") : rc;
}

/* The last byte that can grow grows; those behind it fall away. All 0xff: "\0" means
 * "to the end of the key space". */
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
