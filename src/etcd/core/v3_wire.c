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

static int take_bytes(struct etcd3_reply *r, const json_t *o, const char *name,
                      struct span *out, struct muster_error *err)
{
    struct span text;
    int rc = etcd_get_text(o, name, &text, err);
    int64_t n;

    if (rc < 0)
        return rc;
    n = base64_decode(r->arena + r->used, text);
    if (n < 0)
        return err_set(err, MUSTER_EPROTO, "field \"%s\" of the answer is not base64",
                       name);
    assert((size_t)n <= text.n);
    *out = span_of(r->arena + r->used, (size_t)n);
    r->used += (size_t)n;
    return 0;
}

static int take_revision(const json_t *o, const char *name, int64_t *out,
                         struct muster_error *err)
{
    const int rc = etcd_get_i64(o, name, out, err);

    if (rc == 0 && *out < 0)
        return err_set(err, MUSTER_EPROTO, "field \"%s\" of the answer is negative",
                       name);
    return rc;
}

static int read_kv(struct etcd3_reply *r, const json_t *o, struct etcd3_kv *kv,
                   struct muster_error *err)
{
    int rc;

    if (!json_is_object(o))
        return err_set(err, MUSTER_EPROTO, "a key of the answer is not an object");
    rc = take_bytes(r, o, "key", &kv->key, err);
    if (rc == 0)
        rc = take_bytes(r, o, "value", &kv->value, err);
    if (rc == 0)
        rc = take_revision(o, "create_revision", &kv->create_revision, err);
    if (rc == 0)
        rc = take_revision(o, "mod_revision", &kv->mod_revision, err);
    if (rc == 0)
        rc = take_revision(o, "version", &kv->version, err);
    if (rc == 0)
        rc = etcd_get_i64(o, "lease", &kv->lease, err);
    return rc;
}

static int read_range(struct etcd3_reply *r, const json_t *o, struct etcd3_result *out,
                      struct muster_error *err)
{
    const json_t *list;
    int rc = etcd_get_array(o, "kvs", &list, err);

    out->kind = ETCD3_RANGE;
    if (rc == 0)
        rc = take_revision(o, "count", &out->total, err);
    if (rc < 0 || !list || json_array_size(list) == 0)
        return rc;
    out->kvs = mem_calloc(json_array_size(list), sizeof *out->kvs);
    if (!out->kvs)
        return err_nomem(err);
    out->count = json_array_size(list);
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
    rc = etcd_get_object(o, "response_range", &inner, err);
    if (rc < 0 || inner)
        return rc < 0 ? rc : read_range(r, inner, out, err);
    rc = etcd_get_object(o, "response_delete_range", &inner, err);
    if (rc < 0)
        return rc;
    if (inner) {
        out->kind = ETCD3_DELETE;
        return take_revision(inner, "deleted", &out->deleted, err);
    }
    rc = etcd_get_object(o, "response_put", &inner, err);
    if (rc == 0 && !inner)
        return err_set(err, MUSTER_EPROTO,
                       "a response of the answer has an unknown kind");
    out->kind = ETCD3_PUT;
    return rc;
}

static int read_txn(struct etcd3_reply *r, struct muster_error *err)
{
    const json_t *list;
    int rc = etcd_get_bool(r->root, "succeeded", &r->succeeded, err);

    if (rc == 0)
        rc = etcd_get_array(r->root, "responses", &list, err);
    if (rc < 0 || !list || json_array_size(list) == 0)
        return rc;
    assert(!r->results);
    r->results = mem_calloc(json_array_size(list), sizeof *r->results);
    if (!r->results)
        return err_nomem(err);
    r->count = json_array_size(list);
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
    const int rc = etcd_get_i64(o, "ID", &r->lease_id, err);

    return rc < 0 ? rc : etcd_get_i64(o, "TTL", &r->lease_ttl, err);
}

static int read_event(struct etcd3_reply *r, const json_t *o, struct etcd3_event *ev,
                      struct muster_error *err)
{
    const json_t *kv;
    struct span type;
    int rc;

    if (!json_is_object(o))
        return err_set(err, MUSTER_EPROTO, "an event of the watch is not an object");
    rc = etcd_get_object(o, "kv", &kv, err);
    if (rc == 0)
        rc = etcd_get_text(o, "type", &type, err);
    if (rc < 0)
        return rc;
    ev->deleted = span_eq(type, span_str("DELETE"));
    if (!kv || (type.n && !ev->deleted && !span_eq(type, span_str("PUT"))))
        return err_set(err, MUSTER_EPROTO, "an event of the watch has an unknown kind");
    return read_kv(r, kv, &ev->kv, err);
}

static int read_watch(struct etcd3_reply *r, const json_t *o, struct muster_error *err)
{
    const json_t *list;
    int rc = etcd_get_bool(o, "created", &r->created, err);

    if (rc == 0)
        rc = etcd_get_bool(o, "canceled", &r->canceled, err);
    if (rc == 0)
        rc = take_revision(o, "compact_revision", &r->compact_revision, err);
    if (rc == 0 && r->canceled)
        rc = etcd_get_text(o, "cancel_reason", &r->message, err);
    if (rc == 0)
        rc = etcd_get_array(o, "events", &list, err);
    if (rc < 0 || !list || json_array_size(list) == 0)
        return rc;
    assert(!r->events);
    r->events = mem_calloc(json_array_size(list), sizeof *r->events);
    if (!r->events)
        return err_nomem(err);
    r->event_count = json_array_size(list);
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
    int rc = etcd_get_i64(o, json_object_get(o, "grpc_code") ? "grpc_code" : "code",
                          &code, err);

    if (rc == 0)
        rc = etcd_get_text(o, bare ? "message" : "error", &r->message, err);
    r->error = code > 0 && code <= 16 ? (int)code : 2; /* 2 is gRPC's "unknown". */
    return rc;
}

static int read_answer(struct etcd3_reply *r, enum etcd3_expect expect,
                       struct muster_error *err)
{
    const json_t *body, *header;
    int rc = etcd_get_object(r->root, "result", &body, err); /* only in streams */

    if (!body)
        body = r->root;
    if (rc == 0)
        rc = etcd_get_object(body, "header", &header, err);
    if (rc == 0 && !header)
        return err_set(err, MUSTER_EPROTO, "the answer has no header");
    if (rc == 0)
        rc = take_revision(header, "revision", &r->revision, err);
    if (rc == 0)
        rc = take_revision(header, "raft_term", &r->raft_term, err);
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
        return etcd_get_text(body, "token", &r->token, err);
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
