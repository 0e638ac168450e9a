/* v3_wire.c - answers of the v3 gateway; see v3_wire.h.
 *
 * Decoded keys and values share one arena of the body's size. Decoded base64 is shorter
 * than its text, so the arena cannot overflow, and a reply costs a few allocations
 * however many keys it has. */
#include "etcd/core/v3_wire.h"

#include <assert.h>

#include "base/base64.h"
#include "base/err.h"
#include "base/mem.h"

#define MEMBER(in, name, type)                                                         \
    {                                                                                  \
#name, type, offsetof(struct in, name)                                         \
    }

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
        MEMBER(etcd3_kv, key, ETCD_TEXT),
        MEMBER(etcd3_kv, value, ETCD_TEXT),
        MEMBER(etcd3_kv, create_revision, ETCD_INDEX),
        MEMBER(etcd3_kv, mod_revision, ETCD_INDEX),
        MEMBER(etcd3_kv, version, ETCD_INDEX),
        MEMBER(etcd3_kv, lease, ETCD_NUMBER),
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
        MEMBER(etcd3_reply, created, ETCD_BOOL),
        MEMBER(etcd3_reply, canceled, ETCD_BOOL),
        MEMBER(etcd3_reply, compact_revision, ETCD_INDEX),
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
