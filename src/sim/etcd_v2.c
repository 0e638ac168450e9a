/* etcd_v2.c - the cluster's side of etcd's v2 interface; see etcd.h. It has what
 * torch's rendezvous needs: keys, directories, lifetimes, conditions, waits. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "sim/etcd.h"

struct request {
    char *key;                /* without a slash at the end */
    char *value, *prev_value; /* NULL: not given */
    bool dir, refresh, wait, recursive, has_exist, exist;
    uint64_t prev_index, wait_index, ttl_s;
};

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

static char *unescape(const char *p, size_t n)
{
    char *out = os_alloc(n + 1);
    size_t len = 0;

    for (size_t i = 0; i < n; i++) {
        if (p[i] == '%' && i + 2 < n && hex(p[i + 1]) >= 0 && hex(p[i + 2]) >= 0) {
            out[len++] = (char)(hex(p[i + 1]) * 16 + hex(p[i + 2]));
            i += 2;
        } else {
            out[len++] = p[i];
        }
    }
    out[len] = '\0';
    return out;
}

static bool is_true(const char *v)
{
    return strcmp(v, "true") == 0;
}

static void field(struct request *r, const char *name, char *value)
{
    if (strcmp(name, "value") == 0 || strcmp(name, "prevValue") == 0) {
        char **to = name[0] == 'v' ? &r->value : &r->prev_value;

        *to = value;
        return;
    }
    if (strcmp(name, "ttl") == 0)
        r->ttl_s = strtoull(value, NULL, 10);
    else if (strcmp(name, "dir") == 0)
        r->dir = is_true(value);
    else if (strcmp(name, "refresh") == 0)
        r->refresh = is_true(value);
    else if (strcmp(name, "prevIndex") == 0)
        r->prev_index = strtoull(value, NULL, 10);
    else if (strcmp(name, "waitIndex") == 0)
        r->wait_index = strtoull(value, NULL, 10);
    else if (strcmp(name, "wait") == 0)
        r->wait = is_true(value);
    else if (strcmp(name, "recursive") == 0)
        r->recursive = is_true(value);
    else if (strcmp(name, "prevExist") == 0)
        r->has_exist = true, r->exist = is_true(value);
}

static void fields(struct request *r, const char *p, const char *end)
{
    while (p < end) {
        const char *amp = memchr(p, '&', (size_t)(end - p));
        const char *stop = amp ? amp : end;
        const char *eq = memchr(p, '=', (size_t)(stop - p));
        char name[24];

        assert(eq && (size_t)(eq - p) < sizeof name);
        (void)snprintf(name, sizeof name, "%.*s", (int)(eq - p), p);
        field(r, name, unescape(eq + 1, (size_t)(stop - eq - 1)));
        p = stop + 1;
    }
}

static void parse(struct request *r, const struct etcd_request *m)
{
    static const char root[] = "/v2/keys";
    const char *path = m->path + sizeof root - 1;
    const size_t n = strcspn(path, "?");
    size_t len;

    *r = (struct request){ .key = unescape(path, n) };
    len = strlen(r->key);
    if (len && r->key[len - 1] == '/')
        r->key[len - 1] = '\0';
    if (path[n] == '?')
        fields(r, path + n + 1, path + strlen(path));
    if (m->body.n)
        fields(r, (const char *)m->body.p, (const char *)m->body.p + m->body.n);
}

/* ---- Answers ---- */

static void put_text(struct buf *b, const char *s)
{
    os_must(buf_u8(b, '"'));
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            os_must(buf_u8(b, '\\'));
        os_must(buf_u8(b, (uint8_t)*s));
    }
    os_must(buf_u8(b, '"'));
}

static void put_node(struct buf *b, const struct etcd_entry *e)
{
    os_must(buf_append_str(b, "{\"key\":"));
    put_text(b, e->key);
    if (e->dir) {
        os_must(buf_append_str(b, ",\"dir\":true"));
    } else {
        os_must(buf_append_str(b, ",\"value\":"));
        put_text(b, e->value);
    }
    os_must(buf_printf(b, ",\"modifiedIndex\":%llu,\"createdIndex\":%llu",
                       (unsigned long long)e->modified,
                       (unsigned long long)e->created));
}

static void answer(struct etcd_store *st, const char *action,
                   const struct etcd_entry *e, long status, struct etcd_response *out)
{
    struct buf *b = &out->body;
    const size_t n = strlen(e->key);
    bool first = true;

    out->status = status;
    out->index = st->revision;
    os_must(buf_printf(b, "{\"action\":\"%s\",\"node\":", action));
    put_node(b, e);
    for (size_t i = 0; e->dir && i < st->count; i++) {
        const struct etcd_entry *c = &st->entries[i];

        if (strncmp(c->key, e->key, n) != 0 || c->key[n] != '/' ||
            strchr(c->key + n + 1, '/'))
            continue;
        os_must(buf_append_str(b, first ? ",\"nodes\":[" : ","));
        first = false;
        put_node(b, c);
        os_must(buf_u8(b, '}'));
    }
    os_must(buf_append_str(b, first ? "}}" : "]}}"));
}

static void error(struct etcd_store *st, long status, int code, const char *message,
                  const char *cause, struct etcd_response *out)
{
    out->status = status;
    out->index = st->revision;
    os_must(buf_printf(&out->body,
                       "{\"errorCode\":%d,\"message\":\"%s\",\"cause\":\"%s\","
                       "\"index\":%llu}",
                       code, message, cause, (unsigned long long)st->revision));
}

void etcd2_refuse(struct etcd_store *st, bool timed_out, struct etcd_response *out)
{
    error(st, 500, timed_out ? 300 : 301,
          timed_out ? "Raft Internal Error" : "During Leader Election",
          timed_out ? "etcdserver: request timed out" : "", out);
    out->index = 0;
}

void etcd2_cleared(struct etcd_store *st, uint64_t asked, struct etcd_response *out)
{
    char cause[96];

    (void)snprintf(cause, sizeof cause,
                   "the requested history has been cleared [%llu/%llu]",
                   (unsigned long long)st->oldest, (unsigned long long)asked);
    error(st, 400, 401, "The event in requested index is outdated and cleared", cause,
          out);
}

void etcd2_event(struct etcd_store *st, const struct etcd_change *c,
                 struct etcd_response *out)
{
    const struct etcd_entry *now = etcd_store_find(st, c->key);
    struct etcd_entry e = { .key = c->key,
                            .value = (char *)(now && now->value ? now->value : ""),
                            .modified = c->revision,
                            .created = c->revision };

    answer(st, c->deleted ? "expire" : "set", &e, 200, out);
}

/* ---- Requests ---- */

/* Makes the directories above the key that are missing. */
static void make_dirs(struct etcd_store *st, const char *key)
{
    for (const char *slash = strchr(key + 1, '/'); slash;
         slash = strchr(slash + 1, '/')) {
        const char *dir = os_text("%.*s", (int)(slash - key), key);

        if (!etcd_store_find(st, dir))
            (void)etcd_store_put(st, dir, "", true);
    }
}

static bool holds(struct etcd_store *st, const struct request *r,
                  struct etcd_response *out)
{
    const struct etcd_entry *e = etcd_store_find(st, r->key);
    const bool needs = (r->has_exist && r->exist) || r->prev_index || r->prev_value;

    if (e && r->has_exist && !r->exist) {
        error(st, 412, 105, "Key already exists", r->key, out);
        return false;
    }
    if (!e && needs) {
        error(st, 404, 100, "Key not found", r->key, out);
        return false;
    }
    if (e && ((r->prev_index && r->prev_index != e->modified) ||
              (r->prev_value && strcmp(r->prev_value, e->value) != 0))) {
        error(st, 412, 101, "Compare failed", "[1 != 2]", out);
        return false;
    }
    return true;
}

static void etcd_v2_on_put(struct etcd_store *st, uint64_t now_t,
                           const struct request *r, struct etcd_response *out)
{
    struct etcd_entry *e = etcd_store_find(st, r->key);
    const bool fresh = !e;

    if (!holds(st, r, out))
        return;
    st->revision++;
    if (r->refresh && e) {
        e->modified = st->revision; /* A refresh is not an event for waits. */
    } else {
        make_dirs(st, r->key);
        e = etcd_store_put(st, r->key, r->value ? r->value : "", r->dir);
        etcd_store_note(st, r->key, false);
    }
    e->expire_t = r->ttl_s ? now_t + r->ttl_s * 1000000 : OS_NEVER;
    answer(st, fresh ? "create" : "set", e, fresh ? 201 : 200, out);
}

static void on_delete(struct etcd_store *st, const struct request *r,
                      struct etcd_response *out)
{
    struct etcd_entry *e = etcd_store_find(st, r->key);

    if (!e) {
        error(st, 404, 100, "Key not found", r->key, out);
        return;
    }
    if (!holds(st, r, out))
        return;
    st->revision++;
    answer(st, "compareAndDelete", e, 200, out);
    etcd_store_delete(st, e);
}

void etcd2_apply(struct etcd_store *st, uint64_t now_t, const struct etcd_request *m,
                 struct etcd_response *out)
{
    struct request r;
    const struct etcd_entry *e;

    parse(&r, m);
    if (strcmp(m->method, "PUT") == 0) {
        etcd_v2_on_put(st, now_t, &r, out);
    } else if (strcmp(m->method, "DELETE") == 0) {
        on_delete(st, &r, out);
    } else if ((e = etcd_store_find(st, r.key)) != NULL) {
        answer(st, "get", e, 200, out);
    } else {
        error(st, 404, 100, "Key not found", r.key, out);
    }
}

bool etcd2_is_wait(const struct etcd_request *m, struct etcd_want *out)
{
    struct request r;

    if (strcmp(m->method, "GET") != 0)
        return false;
    parse(&r, m);
    *out = (struct etcd_want){ .key = r.key, .next = r.wait_index };
    out->end = r.recursive ? os_text("%s0", r.key) : NULL;
    return r.wait;
}
