/* etcd_v3.c - the cluster's side of etcd's v3 gateway; see etcd.h. Values stay in
 * base64, as they came. */
#include <assert.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>

#include "base/base64.h"
#include "sim/etcd.h"

static char *decode(const json_t *o, const char *name)
{
    const char *text = json_string_value(json_object_get(o, name));
    char *key;
    int64_t n;

    if (!text)
        return NULL;
    key = os_alloc(BASE64_DECODED(strlen(text)) + 1);
    n = base64_decode((uint8_t *)key, span_str(text));
    assert(n >= 0);
    key[n] = '\0';
    return key;
}

static int64_t number(const json_t *o, const char *name)
{
    const char *text = json_string_value(json_object_get(o, name));

    return text ? strtoll(text, NULL, 10) : 0;
}

static void header(struct buf *b, uint64_t revision)
{
    os_must(buf_printf(b,
                       "\"header\":{\"cluster_id\":\"1\",\"member_id\":\"2\","
                       "\"revision\":\"%" PRIu64 "\",\"raft_term\":\"2\"}",
                       revision));
}

static void put_key(struct buf *b, const char *key)
{
    os_must(buf_append_str(b, "{\"key\":\""));
    os_must(base64_encode(b, span_str(key)));
}

static void put_kv(struct buf *b, const struct etcd_entry *e)
{
    put_key(b, e->key);
    os_must(buf_printf(b,
                       "\",\"create_revision\":\"%" PRIu64
                       "\",\"mod_revision\":\"%" PRIu64 "\",\"version\":\"1\"",
                       e->created, e->modified));
    if (e->value[0]) {
        os_must(buf_append_str(b, ",\"value\":\""));
        os_must(buf_append_str(b, e->value));
        os_must(buf_u8(b, '"'));
    }
    if (e->lease)
        os_must(buf_printf(b, ",\"lease\":\"%" PRId64 "\"", e->lease));
    os_must(buf_u8(b, '}'));
}

static bool within(const char *key, const char *from, const char *end)
{
    if (!end)
        return strcmp(key, from) == 0;
    return strcmp(key, from) >= 0 && strcmp(key, end) < 0;
}

static void error(long status, int code, const char *text, struct etcd_response *out)
{
    out->status = status;
    os_must(buf_printf(&out->body, "{\"error\":\"%s\",\"message\":\"%s\",\"code\":%d}",
                       text, text, code));
}

void etcd3_refuse(bool timed_out, struct etcd_response *out)
{
    error(503, 14,
          timed_out ? "etcdserver: request timed out, possibly due to previous leader "
                      "failure"
                    : "etcdserver: no leader",
          out);
}

/* ---- Keys ---- */

static void range(struct etcd_store *st, const json_t *op, struct buf *b)
{
    char *key = decode(op, "key"), *end = decode(op, "range_end");
    size_t n = 0;

    for (size_t i = 0; i < st->count; i++) {
        if (!within(st->entries[i].key, key, end))
            continue;
        os_must(buf_append_str(b, n++ ? "," : ",\"kvs\":["));
        put_kv(b, &st->entries[i]);
    }
    if (n)
        os_must(buf_printf(b, "],\"count\":\"%zu\"", n));
}

static void delete_range(struct etcd_store *st, const json_t *op, struct buf *b)
{
    char *key = decode(op, "key"), *end = decode(op, "range_end");
    size_t n = 0;

    for (size_t i = st->count; i-- > 0;) {
        if (within(st->entries[i].key, key, end)) {
            etcd_store_delete(st, &st->entries[i]);
            n++;
        }
    }
    if (n)
        os_must(buf_printf(b, ",\"deleted\":\"%zu\"", n));
}

static void apply_put(struct etcd_store *st, const json_t *op)
{
    const char *value = json_string_value(json_object_get(op, "value"));
    char *key = decode(op, "key");

    etcd_store_put(st, key, value ? value : "", false)->lease = number(op, "lease");
    etcd_store_note(st, key, false);
}

static bool holds(struct etcd_store *st, const json_t *c)
{
    char *key = decode(c, "key");
    const struct etcd_entry *e = etcd_store_find(st, key);
    const char *target = json_string_value(json_object_get(c, "target"));
    const bool create = strcmp(target, "CREATE") == 0;
    const uint64_t want =
        (uint64_t)number(c, create ? "create_revision" : "mod_revision");

    assert(create || strcmp(target, "MOD") == 0);
    return (e ? create ? e->created : e->modified : 0) == want;
}

static bool all_hold(struct etcd_store *st, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (!holds(st, json_array_get(list, i)))
            return false;
    }
    return true;
}

/* Whether all leases that writes need exist; otherwise the whole transaction fails. */
static bool leases_exist(struct etcd_store *st, const json_t *ops)
{
    for (size_t i = 0; i < json_array_size(ops); i++) {
        const json_t *op = json_object_get(json_array_get(ops, i), "request_put");
        const int64_t lease = op ? number(op, "lease") : 0;

        if (lease && !etcd_store_lease(st, lease))
            return false;
    }
    return true;
}

static void txn(struct etcd_store *st, const json_t *o, struct etcd_response *out)
{
    const bool yes = all_hold(st, json_object_get(o, "compare"));
    const json_t *ops = json_object_get(o, yes ? "success" : "failure");
    struct buf *b = &out->body;
    bool writes = false;

    if (!leases_exist(st, ops)) {
        error(404, 5, "etcdserver: requested lease not found", out);
        return;
    }
    for (size_t i = 0; i < json_array_size(ops); i++)
        writes |= !json_object_get(json_array_get(ops, i), "request_range");
    st->revision += writes;
    os_must(buf_u8(b, '{'));
    header(b, st->revision);
    os_must(buf_append_str(b, yes ? ",\"succeeded\":true,\"responses\":["
                                  : ",\"responses\":["));
    for (size_t i = 0; i < json_array_size(ops); i++) {
        const json_t *w = json_array_get(ops, i), *op;

        os_must(buf_append_str(b, i ? ",{" : "{"));
        if ((op = json_object_get(w, "request_put")) != NULL) {
            apply_put(st, op);
            os_must(
                buf_append_str(b, "\"response_put\":{\"header\":{\"revision\":\"1\"}"));
        } else if ((op = json_object_get(w, "request_range")) != NULL) {
            os_must(buf_append_str(
                b, "\"response_range\":{\"header\":{\"revision\":\"1\"}"));
            range(st, op, b);
        } else {
            os_must(buf_append_str(
                b, "\"response_delete_range\":{\"header\":{\"revision\":\"1\"}"));
            delete_range(st, json_object_get(w, "request_delete_range"), b);
        }
        os_must(buf_append_str(b, "}}"));
    }
    os_must(buf_append_str(b, "]}"));
}

/* ---- Leases ---- */

static void lease_grant(struct etcd_store *st, uint64_t now_t, const json_t *o,
                        struct etcd_response *out)
{
    const int64_t id = number(o, "ID"), ttl = number(o, "TTL");
    const uint64_t ttl_us = (uint64_t)MAX_OF(ttl, 2) * 1000000;

    if (etcd_store_lease(st, id)) {
        error(412, 9, "etcdserver: lease already exists", out);
        return;
    }
    st->leases = os_grow(st->leases, st->lease_count, sizeof *st->leases);
    st->leases[st->lease_count++] =
        (struct etcd_lease_entry){ id, ttl_us, now_t + ttl_us };
    os_must(buf_u8(&out->body, '{'));
    header(&out->body, st->revision);
    os_must(buf_printf(&out->body, ",\"ID\":\"%" PRId64 "\",\"TTL\":\"%" PRId64 "\"}",
                       id, MAX_OF(ttl, 2)));
}

static void keepalive(struct etcd_store *st, uint64_t now_t, const json_t *o,
                      struct etcd_response *out)
{
    const int64_t id = number(o, "ID");
    struct etcd_lease_entry *l = etcd_store_lease(st, id);

    os_must(buf_append_str(&out->body, "{\"result\":{"));
    header(&out->body, st->revision);
    os_must(buf_printf(&out->body, ",\"ID\":\"%" PRId64 "\"", id));
    if (l) {
        l->expire_t = now_t + l->ttl_us;
        os_must(
            buf_printf(&out->body, ",\"TTL\":\"%" PRIu64 "\"", l->ttl_us / 1000000));
    }
    os_must(buf_append_str(&out->body, "}}"));
}

static void lease_revoke(struct etcd_store *st, uint64_t now_t, const json_t *o,
                         struct etcd_response *out)
{
    struct etcd_lease_entry *l = etcd_store_lease(st, number(o, "ID"));

    if (!l) {
        error(404, 5, "etcdserver: requested lease not found", out);
        return;
    }
    l->expire_t = 0;
    (void)etcd_store_expire(st, now_t);
    os_must(buf_u8(&out->body, '{'));
    header(&out->body, st->revision);
    os_must(buf_u8(&out->body, '}'));
}

static json_t *parse(const struct etcd_request *m)
{
    json_t *o = json_loadb((const char *)m->body.p, m->body.n, 0, NULL);

    assert(o);
    return o;
}

void etcd3_apply(struct etcd_store *st, uint64_t now_t, const struct etcd_request *m,
                 struct etcd_response *out)
{
    const char *path = m->path;
    json_t *o = parse(m);

    out->status = 200;
    if (strcmp(path, "/v3/kv/txn") == 0) {
        txn(st, o, out);
    } else if (strcmp(path, "/v3/kv/range") == 0) {
        os_must(buf_u8(&out->body, '{'));
        header(&out->body, st->revision);
        range(st, o, &out->body);
        os_must(buf_u8(&out->body, '}'));
    } else if (strcmp(path, "/v3/lease/grant") == 0) {
        lease_grant(st, now_t, o, out);
    } else if (strcmp(path, "/v3/lease/keepalive") == 0) {
        keepalive(st, now_t, o, out);
    } else {
        assert(strcmp(path, "/v3/lease/revoke") == 0);
        lease_revoke(st, now_t, o, out);
    }
    json_decref(o);
}

/* ---- Streams ---- */

bool etcd3_is_watch(const struct etcd_request *m, struct etcd_want *out)
{
    json_t *o;
    const json_t *c;

    if (strcmp(m->path, "/v3/watch") != 0)
        return false;
    o = parse(m);
    c = json_object_get(o, "create_request");
    *out = (struct etcd_want){ .key = decode(c, "key"),
                               .end = decode(c, "range_end"),
                               .next = (uint64_t)number(c, "start_revision"),
                               .only_ends = json_object_get(c, "filters") != NULL };
    json_decref(o);
    return true;
}

void etcd3_created(uint64_t revision, struct buf *out)
{
    os_must(buf_append_str(out, "{\"result\":{"));
    header(out, revision);
    os_must(buf_append_str(out, ",\"created\":true}}"));
}

void etcd3_canceled(uint64_t revision, uint64_t compacted, struct buf *out)
{
    os_must(buf_append_str(out, "{\"result\":{"));
    header(out, revision);
    os_must(buf_printf(out, ",\"canceled\":true,\"compact_revision\":\"%" PRIu64 "\"}}",
                       compacted));
}

void etcd3_events(struct etcd_store *st, const struct etcd_change *from, size_t count,
                  const struct etcd_want *w, struct buf *out)
{
    bool first = true;

    for (size_t i = 0; i < count; i++) {
        const struct etcd_change *c = &from[i];

        if (c->revision < w->next || !within(c->key, w->key, w->end) ||
            (w->only_ends && !c->deleted))
            continue;
        if (first) {
            os_must(buf_append_str(out, "{\"result\":{"));
            header(out, st->revision);
        }
        os_must(buf_append_str(out, first ? ",\"events\":[" : ","));
        first = false;
        os_must(buf_append_str(out, c->deleted ? "{\"type\":\"DELETE\",\"kv\":"
                                               : "{\"kv\":"));
        put_key(out, c->key);
        os_must(buf_printf(out, "\",\"mod_revision\":\"%" PRIu64 "\"}}", c->revision));
    }
    if (!first)
        os_must(buf_append_str(out, "]}}"));
}
