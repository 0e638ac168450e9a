/* v3_wire.c - see v3_wire.h: requests for the v3 gateway, its answers, and its errors.
 *
 * The JSON of requests is written directly: everything that is not a number or a fixed
 * word is in base64 or escaped. Decoded keys and values of an answer share one arena of
 * the body's size. Decoded base64 is shorter than its text, so the arena cannot
 * overflow, and a reply costs a few allocations however many keys it has. */
#include "etcd/core/v3_wire.h"

#include <assert.h>
#include <inttypes.h>

#include "base/base64.h"
#include "base/err.h"
#include "base/mem.h"

/* ---- Requests ---- */

static void request_begin(struct etcd_msg *out, const char *path)
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
    request_begin(out, "/v3/kv/txn");

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
    request_begin(out, "/v3/kv/range");
    put_op(&out->body, op);
    return etcd_msg_error(out);
}

int etcd3_encode_grant(struct etcd_msg *out, int64_t id, int64_t ttl_s)
{
    assert(id > 0 && ttl_s > 0);
    request_begin(out, "/v3/lease/grant");
    buf_printf(&out->body, "{\"ID\":\"%" PRId64 "\",\"TTL\":\"%" PRId64 "\"}", id,
               ttl_s);
    return etcd_msg_error(out);
}

int etcd3_encode_keepalive(struct etcd_msg *out, int64_t id)
{
    assert(id > 0);
    request_begin(out, "/v3/lease/keepalive");
    buf_printf(&out->body, "{\"ID\":\"%" PRId64 "\"}", id);
    return etcd_msg_error(out);
}

int etcd3_encode_revoke(struct etcd_msg *out, int64_t id)
{
    assert(id > 0);
    request_begin(out, "/v3/lease/revoke");
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
    request_begin(out, "/v3/auth/authenticate");

    put_text(&out->body, "{", "name", name);
    put_text(&out->body, ",", "password", password);
    buf_u8(&out->body, '}');
    return etcd_msg_error(out);
}

int etcd3_encode_watch(struct etcd_msg *out, struct span key, struct span end,
                       bool only_ends, int64_t start_revision)
{
    struct buf *b = &out->body;
    request_begin(out, "/v3/watch");

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

/* ---- Answers ---- */

/* Replaces text in base64 by the bytes that it stands for. */
static int decode_bytes(struct etcd3_reply *r, const char *name, struct span *bytes,
                        struct muster_error *err)
{
    const int64_t n = base64_decode(r->arena + r->used, *bytes);

    if (n < 0)
        return err_set(err, MUSTER_EPROTO, "field \"%s\" of the answer is not base64",
                       name);
    assert((size_t)n <= bytes->n);
    *bytes = span_of(r->arena + r->used, (size_t)n);
    r->used += (size_t)n;
    return 0;
}

static int read_kv(struct etcd3_reply *r, const json_t *o, struct etcd3_kv *kv,
                   struct muster_error *err)
{
    static const struct etcd_member members[] = {
        { "key", ETCD_TEXT, offsetof(struct etcd3_kv, key) },
        { "value", ETCD_TEXT, offsetof(struct etcd3_kv, value) },
        { "create_revision", ETCD_INDEX, offsetof(struct etcd3_kv, create_revision) },
        { "mod_revision", ETCD_INDEX, offsetof(struct etcd3_kv, mod_revision) },
        { "version", ETCD_INDEX, offsetof(struct etcd3_kv, version) },
        { "lease", ETCD_NUMBER, offsetof(struct etcd3_kv, lease) },
    };
    int rc;

    if (!json_is_object(o))
        return err_set(err, MUSTER_EPROTO, "a key of the answer is not an object");
    rc = etcd_read(o, members, ARRAY_LEN(members), kv, err);
    if (rc == 0)
        rc = decode_bytes(r, "key", &kv->key, err);
    if (rc == 0)
        rc = decode_bytes(r, "value", &kv->value, err);
    return rc;
}

static int read_range(struct etcd3_reply *r, const json_t *o, struct etcd3_result *out,
                      struct muster_error *err)
{
    const json_t *list = NULL;
    int rc = etcd_read_one(o, "kvs", ETCD_ARRAY, &list, err);

    out->kind = ETCD3_RANGE;
    if (rc == 0)
        rc = etcd_read_one(o, "count", ETCD_INDEX, &out->total, err);
    if (rc == 0)
        rc = etcd_make_items(list, sizeof *out->kvs, &out->kvs, &out->count, err);
    for (size_t i = 0; rc == 0 && i < out->count; i++)
        rc = read_kv(r, json_array_get(list, i), &out->kvs[i], err);
    return rc;
}

static int read_result(struct etcd3_reply *r, const json_t *o, struct etcd3_result *out,
                       struct muster_error *err)
{
    const json_t *inner;
    int rc;

    if (!json_is_object(o))
        return err_set(err, MUSTER_EPROTO, "a response of the answer is not an object");
    rc = etcd_read_one(o, "response_range", ETCD_OBJECT, &inner, err);
    if (rc < 0 || inner)
        return rc < 0 ? rc : read_range(r, inner, out, err);
    rc = etcd_read_one(o, "response_delete_range", ETCD_OBJECT, &inner, err);
    if (rc < 0)
        return rc;
    if (inner) {
        out->kind = ETCD3_DELETE;
        return etcd_read_one(inner, "deleted", ETCD_INDEX, &out->deleted, err);
    }
    rc = etcd_read_one(o, "response_put", ETCD_OBJECT, &inner, err);
    if (rc == 0 && !inner)
        return err_set(err, MUSTER_EPROTO,
                       "a response of the answer has an unknown kind");
    out->kind = ETCD3_PUT;
    return rc;
}

static int read_txn(struct etcd3_reply *r, struct muster_error *err)
{
    const json_t *list = NULL;
    int rc = etcd_read_one(r->root, "succeeded", ETCD_BOOL, &r->succeeded, err);

    assert(!r->results);
    if (rc == 0)
        rc = etcd_read_one(r->root, "responses", ETCD_ARRAY, &list, err);
    if (rc == 0)
        rc = etcd_make_items(list, sizeof *r->results, &r->results, &r->count, err);
    for (size_t i = 0; rc == 0 && i < r->count; i++)
        rc = read_result(r, json_array_get(list, i), &r->results[i], err);
    return rc;
}

static int read_bare_range(struct etcd3_reply *r, struct muster_error *err)
{
    assert(!r->results);
    r->results = mem_calloc(1, sizeof *r->results);
    if (!r->results)
        return err_nomem(err);
    r->count = 1;
    return read_range(r, r->root, &r->results[0], err);
}

static int read_lease(struct etcd3_reply *r, const json_t *o, struct muster_error *err)
{
    static const struct etcd_member members[] = {
        { "ID", ETCD_NUMBER, offsetof(struct etcd3_reply, lease_id) },
        { "TTL", ETCD_NUMBER, offsetof(struct etcd3_reply, lease_ttl) },
    };

    return etcd_read(o, members, ARRAY_LEN(members), r, err);
}

static int read_event(struct etcd3_reply *r, const json_t *o, struct etcd3_event *ev,
                      struct muster_error *err)
{
    const json_t *kv;
    struct span type;
    int rc;

    if (!json_is_object(o))
        return err_set(err, MUSTER_EPROTO, "an event of the watch is not an object");
    rc = etcd_read_one(o, "kv", ETCD_OBJECT, &kv, err);
    if (rc == 0)
        rc = etcd_read_one(o, "type", ETCD_TEXT, &type, err);
    if (rc < 0)
        return rc;
    ev->deleted = span_eq(type, span_str("DELETE"));
    if (!kv || (type.n && !ev->deleted && !span_eq(type, span_str("PUT"))))
        return err_set(err, MUSTER_EPROTO, "an event of the watch has an unknown kind");
    return read_kv(r, kv, &ev->kv, err);
}

static int read_watch(struct etcd3_reply *r, const json_t *o, struct muster_error *err)
{
    static const struct etcd_member members[] = {
        { "created", ETCD_BOOL, offsetof(struct etcd3_reply, created) },
        { "canceled", ETCD_BOOL, offsetof(struct etcd3_reply, canceled) },
        { "compact_revision", ETCD_INDEX,
          offsetof(struct etcd3_reply, compact_revision) },
    };
    const json_t *list = NULL;
    int rc = etcd_read(o, members, ARRAY_LEN(members), r, err);

    assert(!r->events);
    if (rc == 0 && r->canceled)
        rc = etcd_read_one(o, "cancel_reason", ETCD_TEXT, &r->message, err);
    if (rc == 0)
        rc = etcd_read_one(o, "events", ETCD_ARRAY, &list, err);
    if (rc == 0)
        rc = etcd_make_items(list, sizeof *r->events, &r->events, &r->event_count, err);
    for (size_t i = 0; rc == 0 && i < r->event_count; i++)
        rc = read_event(r, json_array_get(list, i), &r->events[i], err);
    return rc;
}

/* Up to 3.5 an error is {"error":"text","code":5}, and in a stream
 * {"error":{"grpc_code":5,"message":"text"}}; since 3.6 it is
 * {"code":5,"message":"text"} and {"error":{"code":5,"message":"text"}}. */
static int read_error(struct etcd3_reply *r, struct muster_error *err)
{
    const json_t *e = json_object_get(r->root, "error");
    const bool nested = json_is_object(e);
    const json_t *o = nested ? e : r->root;
    const bool bare = !json_is_string(json_object_get(o, "error"));
    int64_t code = 0;
    int rc = etcd_read_one(o, json_object_get(o, "grpc_code") ? "grpc_code" : "code",
                           ETCD_NUMBER, &code, err);

    if (rc == 0)
        rc = etcd_read_one(o, bare ? "message" : "error", ETCD_TEXT, &r->message, err);
    r->error = code > 0 && code <= 16 ? (int)code : 2; /* 2 is gRPC's "unknown". */
    return rc;
}

static int read_answer(struct etcd3_reply *r, enum etcd3_expect expect,
                       struct muster_error *err)
{
    const json_t *body, *header;
    int rc =
        etcd_read_one(r->root, "result", ETCD_OBJECT, &body, err); /* only in streams */

    if (!body)
        body = r->root;
    if (rc == 0)
        rc = etcd_read_one(body, "header", ETCD_OBJECT, &header, err);
    if (rc == 0 && !header)
        return err_set(err, MUSTER_EPROTO, "the answer has no header");
    if (rc == 0)
        rc = etcd_read_one(header, "revision", ETCD_INDEX, &r->revision, err);
    if (rc < 0)
        return rc;
    switch (expect) {
    case ETCD3_EXPECT_TXN:
        return read_txn(r, err);
    case ETCD3_EXPECT_RANGE:
        return read_bare_range(r, err);
    case ETCD3_EXPECT_LEASE:
        return read_lease(r, body, err);
    case ETCD3_EXPECT_TOKEN:
        return etcd_read_one(body, "token", ETCD_TEXT, &r->token, err);
    case ETCD3_EXPECT_WATCH:
        return read_watch(r, body, err);
    }
    return MUSTER_EBUG;
}

/* A proxy's refusal may be {"message":"text"}; only etcd's errors have a code. */
static bool is_error(const struct etcd_http *http, const json_t *root)
{
    return json_object_get(root, "error") ||
           (http->status >= 400 && json_is_integer(json_object_get(root, "code")) &&
            json_is_string(json_object_get(root, "message")));
}

static int refuse_text(const struct etcd_http *http, struct muster_error *err)
{
    if (http->status == 404 && http->body.n && http->body.p[0] != '{')
        return err_set(
            err, MUSTER_ENOTSUP,
            "this server does not offer etcd's v3 API over JSON (HTTP status "
            "404): it is another service, an etcd older than 3.4, or one that was "
            "started with --enable-grpc-gateway=false");
    return 0;
}

int etcd3_decode(const struct etcd_http *http, enum etcd3_expect expect,
                 struct etcd3_reply *out, struct muster_error *err)
{
    struct etcd3_reply r = { .error = 0 };
    int rc = refuse_text(http, err);

    if (rc < 0)
        return rc;
    r.root = etcd_parse(http, err);
    if (!r.root)
        return err ? err->code : MUSTER_EPROTO;
    r.arena = mem_alloc(http->body.n + 1);
    if (!r.arena)
        rc = err_nomem(err);
    else if (is_error(http, r.root))
        rc = read_error(&r, err);
    else if (http->status >= 400)
        rc = err_set(err, MUSTER_EPROTO, "HTTP status %ld without an error text",
                     http->status);
    else
        rc = read_answer(&r, expect, err);
    if (rc < 0) {
        etcd3_reply_fini(&r);
        return rc;
    }
    *out = r;
    return 0;
}

void etcd3_reply_fini(struct etcd3_reply *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->count; i++)
        mem_free(r->results[i].kvs);
    mem_free(r->results);
    mem_free(r->events);
    mem_free(r->arena);
    json_decref(r->root);
    *r = (struct etcd3_reply){ .error = 0 };
}

bool etcd3_next_line(struct span in, size_t *seen, struct span *line)
{
    const uint8_t *nl;

    if (*seen >= in.n)
        return false;
    nl = memchr(in.p + *seen, '\n', in.n - *seen);
    *seen = nl ? 0 : in.n;
    if (nl)
        *line = span_of(in.p, (size_t)(nl - in.p));
    return nl != NULL;
}

/* ---- Errors of etcd, with a remedy ---- */

static bool says(struct span s, const char *word)
{
    return s.p && memmem(s.p, s.n, word, strlen(word)) != NULL;
}

bool etcd3_token_outdated(const struct etcd3_reply *r)
{
    return says(r->message, "revision of auth store is old") || /* 3.4 */
           says(r->message, "revision in header is old");       /* 3.5 */
}

/* The gRPC code decides, except where etcd uses one code for several things. */
static int code_of(const struct etcd3_reply *r)
{
    switch (r->error) {
    case ETCD3_NOT_FOUND:
        return MUSTER_ENOENT;
    case ETCD3_DENIED:
    case ETCD3_UNAUTHENTICATED:
        return MUSTER_EACCES;
    case ETCD3_EXHAUSTED:
        return says(r->message, "too many requests") ? MUSTER_ECONN : MUSTER_EFULL;
    case ETCD3_UNAVAILABLE:
    case ETCD3_DEADLINE:
    case ETCD3_CANCELED: /* We did not cancel it: the member is shutting down. */
        return MUSTER_ECONN;
    case ETCD3_OUT_OF_RANGE:
        return MUSTER_ESTATE;
    case ETCD3_PRECONDITION:
        return says(r->message, "already exists") ? MUSTER_EEXIST : MUSTER_EACCES;
    }
    if (says(r->message, "user name is empty") || says(r->message, "authentication") ||
        etcd3_token_outdated(r))
        return MUSTER_EACCES;
    if (says(r->message, "too large"))
        return MUSTER_EINVAL;
    /* An old gateway has the code "unknown" for a lost leader; a new one has it for a
     * request that was under way when the leader changed or the member stopped. */
    return says(r->message, "leader") || says(r->message, "timed out") ||
                   says(r->message, "proposal dropped") || says(r->message, "stopped")
               ? MUSTER_ECONN
               : MUSTER_EPROTO;
}

static const char *remedy(const struct etcd3_reply *r, int code)
{
    if (says(r->message, "space exceeded"))
        return ". The database is full (NOSPACE alarm): compact and defragment it, "
               "then `etcdctl alarm disarm`, or raise --quota-backend-bytes";
    if (says(r->message, "too large"))
        return ". Raise --max-request-bytes of the servers";
    if (says(r->message, "user name is empty"))
        return ". This cluster asks for a user: give --rdzv-conf user=NAME and the "
               "password in password_file=FILE or MUSTER_ETCD_PASSWORD";
    if (says(r->message, "not enabled"))
        return ". Leave user and password out, or `etcdctl auth enable`";
    if (says(r->message, "invalid user ID or password"))
        return ". Check user and password";
    if (r->error == ETCD3_DENIED)
        return ". Grant the user's role readwrite on the prefix of the keys";
    if (r->error == ETCD3_CANCELED)
        return ". This member is going down";
    if (code == MUSTER_ECONN)
        return ". The cluster has no leader or no quorum just now: see `etcdctl "
               "endpoint status --cluster`";
    return "";
}

int etcd3_error(const struct etcd3_reply *r, struct muster_error *err)
{
    const int code = code_of(r);

    err_set(err, code, "etcd says: %.*s%s", (int)MIN_OF(r->message.n, 300),
            r->message.p ? (const char *)r->message.p : "(nothing)", remedy(r, code));
    return code;
}
