/* etcd_said.h - answers of an etcd for unit tests of what is decided by them: recorded
 * from a real server, or written here where no server says such a thing on demand. */
#ifndef TESTS_ETCD_SAID_H
#define TESTS_ETCD_SAID_H

#include "golden.h"

#include "etcd/core/kv_operation.h"

struct said {
    char *text; /* owned */
    struct etcd_http http;
};

/* "=v2-get" is a recording of etcd 3.5, "=3.4/v2-get" one of 3.4; anything else is the
 * answer itself: HTTP status, X-Etcd-Index, one space or line feed, the body. */
static inline struct said said_of(const char *what)
{
    struct said s = { .text = NULL };
    unsigned long long index = 0;
    char path[128];
    size_t n;
    int at = 0;

    if (what[0] == '=') {
        (void)snprintf(path, sizeof path, "etcd/%s%s", strchr(what, '/') ? "" : "3.5/",
                       what + 1);
        s.text = golden_read(path, &n);
    } else {
        n = strlen(what);
        s.text = malloc(n + 1);
        assert_non_null(s.text);
        memcpy(s.text, what, n + 1);
    }
    assert_int_equal(sscanf(s.text, "%ld %llu%n", &s.http.status, &index, &at), 2);
    s.http.index = index;
    s.http.body = span_of(s.text + at + 1, n - (size_t)at - 1);
    return s;
}

static inline void said_fini(struct said *s)
{
    free(s->text);
    s->text = NULL;
}

/* NULL is the empty text, for a row that says nothing of a field. */
static inline void span_is(const char *says, const char *what, struct span got,
                           const char *want)
{
    if (!span_eq(got, span_str(want ? want : "")))
        fail_msg("%s: %s is \"%.*s\", not \"%s\"", says, what, (int)got.n,
                 got.p ? (const char *)got.p : "", want ? want : "");
}

static inline void number_is(const char *says, const char *what, long long got,
                             long long want)
{
    if (got != want)
        fail_msg("%s: %s is %lld, not %lld", says, what, got, want);
}

static inline void code_is(const char *says, int got, int want)
{
    if (got != want)
        fail_msg("%s: %s, not %s", says, got ? muster_code_name(got) : "0",
                 want ? muster_code_name(want) : "0");
}

static inline void text_is(const char *says, const char *got, const char *want)
{
    if (strcmp(got, want) != 0)
        fail_msg("%s:\n    %s\nnot %s", says, got, want);
}

/* The whole request, as one reads it in a trace: "PUT /v2/keys/k value=v". */
static inline void msg_is(const char *says, const struct etcd_msg *m, const char *want)
{
    char got[2048];

    (void)snprintf(got, sizeof got, "%s %s%s%.*s", m->method,
                   (const char *)buf_data(&m->path), buf_len(&m->body) ? " " : "",
                   (int)buf_len(&m->body),
                   buf_len(&m->body) ? (const char *)buf_data(&m->body) : "");
    text_is(says, got, want);
}

#endif
