/* http_message.c - see http_message.h. Everything that is read here comes from outside
 * and may be hostile: types are checked, numbers are bounded, and jansson limits the
 * depth (2048). */
#include "etcd/core/http_message.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <strings.h>

#include "base/err.h"
#include "base/mem.h"

void etcd_msg_init(struct etcd_msg *m)
{
    *m = (struct etcd_msg){ .method = "GET" };
    buf_init(&m->path, SIZE_MAX);
    buf_init(&m->body, SIZE_MAX);
}

void etcd_msg_fini(struct etcd_msg *m)
{
    if (!m)
        return;
    buf_fini(&m->path);
    buf_fini(&m->body);
}

static bool plain(uint8_t c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           c == '-' || c == '.' || c == '_' || c == '~';
}

int etcd_escape(struct buf *out, struct span s, bool slash)
{
    static const char hex[] = "0123456789ABCDEF";
    uint8_t *o;
    size_t n = 0;

    if (s.n > SIZE_MAX / 3)
        return MUSTER_EFULL;
    o = buf_room(out, s.n * 3);
    if (!o)
        return buf_room_err(out, s.n * 3);
    for (size_t i = 0; i < s.n; i++) {
        const uint8_t c = s.p[i];

        if (plain(c) || (slash && c == '/')) {
            o[n++] = c;
            continue;
        }
        o[n++] = '%';
        o[n++] = (uint8_t)hex[c >> 4];
        o[n++] = (uint8_t)hex[c & 15];
    }
    assert(n <= s.n * 3);
    buf_commit(out, n);
    return 0;
}

/* Writes the first bytes as one line for a message, without control characters. */
static void excerpt(struct span s, char out[81])
{
    size_t n = 0;

    for (size_t i = 0; i < s.n && n < 80; i++) {
        const bool blank = s.p[i] <= ' ' || s.p[i] == 0x7f;

        if (blank && (n == 0 || out[n - 1] == ' '))
            continue;
        out[n++] = blank ? ' ' : (s.p[i] < 0x7f ? (char)s.p[i] : '?');
    }
    out[n] = '\0';
    assert(n <= 80);
}

bool etcd_is_html(struct span s)
{
    size_t i = 0;

    while (i < s.n && isspace(s.p[i]))
        i++;
    return s.n - i >= 5 && (strncasecmp((const char *)s.p + i, "<html", 5) == 0 ||
                            strncasecmp((const char *)s.p + i, "<!doc", 5) == 0);
}

int etcd_wrong_service(const struct etcd_http *http, struct muster_error *err)
{
    char text[81];

    excerpt(http->body, text);
    if (etcd_is_html(http->body))
        return err_set(
            err, MUSTER_ENOTSTORE,
            "a web page came back (HTTP status %ld: %s): a proxy or another web "
            "server answers here, not etcd. Check host and port, and that no proxy "
            "stands between (no_proxy)",
            http->status, text);
    return err_set(
        err, MUSTER_ENOTSTORE,
        "the answer is not etcd's (HTTP status %ld: %s). Check host and port",
        http->status, text);
}

static json_t *refuse_body(const struct etcd_http *http, const json_error_t *why,
                           struct muster_error *err)
{
    if (http->body.n == 0)
        err_set(err, MUSTER_EPROTO, "HTTP status %ld with an empty body", http->status);
    else if (http->body.p[0] == '{')
        err_set(err, MUSTER_EPROTO,
                "the answer (HTTP status %ld, %zu bytes) is not whole JSON: %s at byte "
                "%d",
                http->status, http->body.n, why->text, why->position);
    else
        (void)etcd_wrong_service(http, err);
    return NULL;
}

json_t *etcd_parse(const struct etcd_http *http, struct muster_error *err)
{
    json_error_t why = { .line = 0 };
    const char *text = http->body.n ? (const char *)http->body.p : "";
    json_t *root = json_loadb(text, http->body.n, JSON_REJECT_DUPLICATES, &why);

    if (!root && json_error_code(&why) == json_error_out_of_memory) {
        err_nomem(err);
        return NULL;
    }
    if (!root || !json_is_object(root)) {
        json_decref(root);
        return refuse_body(http, &why, err);
    }
    return root;
}

static int wrong(const char *name, const char *want, struct muster_error *err)
{
    return err_set(err, MUSTER_EPROTO, "field \"%s\" of the answer is not %s", name,
                   want);
}

/* proto3's JSON writes 64-bit numbers as text; v2 writes them as numbers. */
static int read_number(const json_t *v, const char *name, int64_t *out,
                       struct muster_error *err)
{
    char *end;

    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return 0;
    }
    if (!json_is_string(v) || json_string_length(v) == 0 ||
        json_string_length(v) > 20 || isspace((uint8_t)*json_string_value(v)))
        return wrong(name, "a number", err);
    errno = 0;
    const long long n = strtoll(json_string_value(v), &end, 10);

    if (errno != 0 || *end != '\0')
        return wrong(name, "a 64-bit number", err);
    *out = n;
    return 0;
}

/* v is NULL if the member is absent. */
static int read_member(const json_t *v, const struct etcd_member *m, void *to,
                       struct muster_error *err)
{
    int64_t n = 0;
    int rc = 0;

    switch (m->type) {
    case ETCD_NUMBER:
    case ETCD_INDEX:
        if (v)
            rc = read_number(v, m->name, &n, err);
        if (rc == 0 && n < 0 && m->type == ETCD_INDEX)
            rc = err_set(err, MUSTER_EPROTO, "field \"%s\" of the answer is negative",
                         m->name);
        if (rc == 0)
            memcpy(to, &n, sizeof n);
        return rc;
    case ETCD_BOOL:
        *(bool *)to = json_is_true(v);
        return v && !json_is_boolean(v) ? wrong(m->name, "true or false", err) : 0;
    case ETCD_TEXT:
        *(struct span *)to = span_of(json_string_value(v), json_string_length(v));
        return v && !json_is_string(v) ? wrong(m->name, "text", err) : 0;
    case ETCD_OBJECT:
        *(const json_t **)to = v;
        return v && !json_is_object(v) ? wrong(m->name, "an object", err) : 0;
    case ETCD_ARRAY:
        *(const json_t **)to = v;
        return v && !json_is_array(v) ? wrong(m->name, "an array", err) : 0;
    }
    return MUSTER_EBUG;
}

int etcd_read(const json_t *o, const struct etcd_member *members, size_t count,
              void *to, struct muster_error *err)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < count; i++) {
        const json_t *v = json_object_get(o, members[i].name);

        rc = read_member(json_is_null(v) ? NULL : v, &members[i],
                         (char *)to + members[i].at, err);
    }
    return rc;
}

int etcd_read_one(const json_t *o, const char *name, enum etcd_type type, void *to,
                  struct muster_error *err)
{
    return etcd_read(o, &(struct etcd_member){ name, type, 0 }, 1, to, err);
}

int etcd_make_items(const json_t *list, size_t size, void *items, size_t *count,
                    struct muster_error *err)
{
    const size_t n = json_array_size(list);
    void *made = n ? mem_calloc(n, size) : NULL;

    if (n && !made)
        return err_nomem(err);
    memcpy(items, &made, sizeof made);
    *count = n;
    return 0;
}
