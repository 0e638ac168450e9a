/* v2_wire.c - see v2_wire.h. */
#include "etcd/core/v2_wire.h"

#include <inttypes.h>

#include "base/err.h"
#include "base/mem.h"

#define FORM "application/x-www-form-urlencoded"

/* Appends "name=", with a "&" before it unless it is the first. */
static void put_name(struct buf *out, const char *name)
{
    (void)buf_printf(out, "%s%s=", buf_len(out) ? "&" : "", name);
}

static void put_span(struct buf *out, const char *name, struct span v)
{
    if (!v.p)
        return;
    put_name(out, name);
    (void)etcd_escape(out, v, false);
}

static void put_number(struct buf *out, const char *name, uint64_t v)
{
    if (v == 0)
        return;
    put_name(out, name);
    (void)buf_printf(out, "%" PRIu64, v);
}

static void put_true(struct buf *out, const char *name, bool v)
{
    if (v)
        put_span(out, name, span_str("true"));
}

/* PUT sends the fields as a form, DELETE and GET as a query; the server reads both. */
static void put_fields(struct buf *out, const struct etcd2_request *req)
{
    put_span(out, "value", req->value);
    put_number(out, "ttl", req->ttl_s);
    put_true(out, "dir", req->dir);
    put_true(out, "refresh", req->refresh);
    if (req->prev_exist != ETCD2_ANY)
        put_span(out, "prevExist",
                 span_str(req->prev_exist == ETCD2_MUST_EXIST ? "true" : "false"));
    put_number(out, "prevIndex", req->prev_index);
    put_span(out, "prevValue", req->prev_value);
    put_true(out, "wait", req->wait);
    put_number(out, "waitIndex", req->wait_index);
    put_true(out, "recursive", req->recursive);
    put_true(out, "quorum", req->quorum);
}

int etcd2_encode(struct etcd_msg *out, const struct etcd2_request *req)
{
    static const char *const verbs[] = { "GET", "PUT", "DELETE" };
    struct buf query;

    buf_init(&query, SIZE_MAX);
    put_fields(&query, req);
    out->method = verbs[req->verb];
    (void)buf_append_str(&out->path, "/v2/keys");
    if (req->key.n == 0 || req->key.p[0] != '/')
        (void)buf_u8(&out->path, '/');
    (void)etcd_escape(&out->path, req->key, true);
    if (req->verb == ETCD2_PUT) {
        out->type = FORM;
        (void)buf_append_span(&out->body, buf_span(&query));
    } else if (buf_len(&query) != 0) {
        (void)buf_u8(&out->path, '?');
        (void)buf_append_span(&out->path, buf_span(&query));
    }
    (void)buf_u8(&out->path, '\0');
    buf_fail(&out->path, buf_error(&query));
    buf_fini(&query);
    return etcd_msg_error(out);
}

int etcd2_encode_machines(struct etcd_msg *out)
{
    static const char path[] = "/v2/machines";

    out->method = "GET";
    return buf_append(&out->path, path, sizeof path);
}

static int read_node(const json_t *o, struct etcd2_node *out, struct muster_error *err)
{
    static const struct etcd_member members[] = {
        { "key", ETCD_TEXT, offsetof(struct etcd2_node, key) },
        { "value", ETCD_TEXT, offsetof(struct etcd2_node, value) },
        { "dir", ETCD_BOOL, offsetof(struct etcd2_node, dir) },
        { "modifiedIndex", ETCD_INDEX, offsetof(struct etcd2_node, modified_index) },
    };

    if (!json_is_object(o))
        return err_set(err, MUSTER_EPROTO, "a node of the listing is not an object");
    return etcd_read(o, members, ARRAY_LEN(members), out, err);
}

static int read_children(const json_t *node, struct etcd2_reply *out,
                         struct muster_error *err)
{
    const json_t *list = NULL;
    int rc = etcd_read_one(node, "nodes", ETCD_ARRAY, &list, err);

    if (rc == 0)
        rc = etcd_make_items(list, sizeof *out->nodes, &out->nodes, &out->count, err);
    for (size_t i = 0; rc == 0 && i < out->count; i++)
        rc = read_node(json_array_get(list, i), &out->nodes[i], err);
    return rc;
}

static int read_error(struct etcd2_reply *out, struct muster_error *err)
{
    static const struct etcd_member members[] = {
        { "message", ETCD_TEXT, offsetof(struct etcd2_reply, message) },
        { "cause", ETCD_TEXT, offsetof(struct etcd2_reply, cause) },
        { "index", ETCD_INDEX, offsetof(struct etcd2_reply, index) },
    };
    int64_t code;
    int rc = etcd_read_one(out->root, "errorCode", ETCD_NUMBER, &code, err);

    if (rc == 0)
        rc = etcd_read(out->root, members, ARRAY_LEN(members), out, err);
    if (rc == 0 && (code <= 0 || code > 9999))
        return err_set(err, MUSTER_EPROTO, "the answer has an unknown error code %lld",
                       (long long)code);
    if (rc == 0)
        out->error = (int)code;
    return rc;
}

static int read_reply(struct etcd2_reply *out, struct muster_error *err)
{
    const json_t *node;
    int rc = etcd_read_one(out->root, "node", ETCD_OBJECT, &node, err);

    if (rc == 0 && !node)
        return err_set(err, MUSTER_EPROTO, "the answer has neither node nor errorCode");
    if (rc == 0)
        rc = etcd_read_one(out->root, "action", ETCD_TEXT, &out->action, err);
    if (rc == 0)
        rc = read_node(node, &out->node, err);
    if (rc == 0)
        rc = read_children(node, out, err);
    return rc;
}

/* Go's HTTP server answers "404 page not found" if nothing is served at /v2. */
static int refuse_text(const struct etcd_http *http, struct muster_error *err)
{
    static const char page[] = "404 page not found";

    if (http->status != 404 || http->body.n < sizeof page - 1 ||
        memcmp(http->body.p, page, sizeof page - 1) != 0)
        return 0;
    return err_set(err, MUSTER_ENOTSUP,
                   "this server does not offer etcd's v2 API (HTTP status 404). Start "
                   "etcd (3.2 to 3.5) with --enable-v2, or use "
                   "--rdzv-backend=etcd-v3, which needs nothing enabled");
}

int etcd2_decode(const struct etcd_http *http, struct etcd2_reply *out,
                 struct muster_error *err)
{
    struct etcd2_reply r = { .index = http->index };
    int rc = refuse_text(http, err);

    if (rc < 0)
        return rc;
    r.root = etcd_parse(http, err);
    if (!r.root)
        return err ? err->code : MUSTER_EPROTO;
    if (json_object_get(r.root, "errorCode"))
        rc = read_error(&r, err);
    else if (http->status >= 400)
        rc = err_set(err, MUSTER_EPROTO, "HTTP status %ld without an error code",
                     http->status);
    else
        rc = read_reply(&r, err);
    if (rc < 0) {
        etcd2_reply_fini(&r);
        return rc;
    }
    *out = r;
    return 0;
}

void etcd2_reply_fini(struct etcd2_reply *r)
{
    if (!r)
        return;
    json_decref(r->root);
    mem_free(r->nodes);
    *r = (struct etcd2_reply){ .error = 0 };
}

int etcd2_error(const struct etcd2_reply *r, struct muster_error *err)
{
    int code = MUSTER_EPROTO;

    switch (r->error) {
    case ETCD2_KEY_NOT_FOUND:
        code = MUSTER_ENOENT;
        break;
    case ETCD2_COMPARE_FAILED:
    case ETCD2_EXISTS:
        code = MUSTER_EEXIST;
        break;
    case ETCD2_UNAUTHORIZED:
        code = MUSTER_EACCES;
        break;
    case ETCD2_RAFT_INTERNAL:
    case ETCD2_LEADER_ELECT:
        code = MUSTER_ECONN;
        break;
    case ETCD2_CLEARED:
        code = MUSTER_ESTATE;
        break;
    }
    err_set(
        err, code, "etcd says: %.*s (%.*s), error %d", (int)MIN_OF(r->message.n, 200),
        r->message.p ? (const char *)r->message.p : "", (int)MIN_OF(r->cause.n, 300),
        r->cause.p ? (const char *)r->cause.p : "", r->error);
    if (code == MUSTER_EACCES)
        err_add(err, ". Give a user who may read and write this key");
    return code;
}

bool etcd2_machines_next(struct span *list, struct span *url)
{
    while (span_take_word(list, ", ", url))
        if (span_starts(*url, "http://") || span_starts(*url, "https://"))
            return true;
    return false;
}

int etcd2_check_machines(const struct etcd_http *http, struct muster_error *err)
{
    struct span list = http->body, url;

    if (list.n == 0 || (!etcd_is_html(list) && etcd2_machines_next(&list, &url)))
        return 0;
    return etcd_wrong_service(http, err);
}
