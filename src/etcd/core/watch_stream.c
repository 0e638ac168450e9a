/* watch_stream.c - see watch_stream.h. */
#include "etcd/core/watch_stream.h"

#include <assert.h>

#include "base/err.h"
#include "base/mem.h"

/* A member that was cut off does not know at once what the others have told us. If so
 * many streams in a row, each at the next member, are behind, the cluster is. */
#define BEHIND_MOST 4u

int etcd_stream_init(struct etcd_stream *s, struct span key, struct span end,
                     bool only_ends, int64_t start_revision)
{
    *s = (struct etcd_stream){ .only_ends = only_ends, .next = start_revision };
    s->key = span_of(mem_memdup(key.p, key.n), key.n);
    if (end.n)
        s->end = span_of(mem_memdup(end.p, end.n), end.n);
    if (s->key.p && (!end.n || s->end.p))
        return 0;
    etcd_stream_fini(s);
    return MUSTER_ENOMEM;
}

void etcd_stream_fini(struct etcd_stream *s)
{
    mem_free((uint8_t *)s->key.p);
    mem_free((uint8_t *)s->end.p);
    s->key = s->end = (struct span){ NULL, 0 };
}

int etcd_stream_encode(struct etcd_stream *s, struct etcd_msg *m)
{
    assert(s->key.p);
    s->created = false;
    return etcd3_encode_watch(m, s->key, s->end, s->only_ends, s->next);
}

static enum etcd_stream_next on_created(struct etcd_stream *s,
                                        struct etcd_stream_news *out)
{
    const int64_t revision = out->reply.revision;

    assert(out->reply.created);
    if (s->next > revision + 1 && s->behind++ < BEHIND_MOST) {
        out->behind = true;
        err_set(&out->err, MUSTER_EHANGUP, "this member has yet to catch up");
        return ETCD_STREAM_FAILED;
    }
    s->created = true;
    s->tries = s->behind = 0;
    if (s->next > revision + 1) {
        /* The cluster was restored from a backup, and does not know what we saw. */
        out->went_back = s->next - 1;
        out->missed = true;
        s->next = revision + 1;
        return ETCD_STREAM_REOPEN;
    }
    if (s->next == 0)
        s->next = revision + 1;
    return ETCD_STREAM_ON;
}

/* The gRPC code of a canceled watch is only in its text. etcd 3.5 says "permission
 * denied" for an expired token, too, so the token may be the reason in each case. */
static void watch_stream_on_refused(struct etcd_stream_news *out)
{
    static const struct {
        const char *word;
        enum etcd3_code code;
    } words[] = { { "permission denied", ETCD3_DENIED },
                  { "invalid auth token", ETCD3_UNAUTHENTICATED } };
    struct etcd3_reply why = { .message = out->reply.message };

    out->token = etcd3_token_outdated(&why);
    for (size_t i = 0; i < ARRAY_LEN(words) && !out->token; i++) {
        if (!memmem(why.message.p, why.message.n, words[i].word, strlen(words[i].word)))
            continue;
        why.error = (int)words[i].code;
        out->token = true;
    }
    (void)etcd3_error(&why, &out->err);
}

static enum etcd_stream_next on_canceled(struct etcd_stream *s,
                                         struct etcd_stream_news *out)
{
    const struct etcd3_reply *r = &out->reply;

    if (r->compact_revision > 0) {
        out->missed = true;
        s->next = r->compact_revision;
        return ETCD_STREAM_REOPEN;
    }
    /* The watch goes on from the same revision at the next endpoint. */
    err_set(&out->err, MUSTER_EHANGUP, "the watch was canceled");
    if (r->message.n)
        watch_stream_on_refused(out);
    return ETCD_STREAM_FAILED;
}

static enum etcd_stream_next on_message(struct etcd_stream *s,
                                        struct etcd_stream_news *out)
{
    const struct etcd3_reply *r = &out->reply;

    if (r->canceled) /* The line of a watch that is refused also says "created". */
        return on_canceled(s, out);
    if (r->created)
        return on_created(s, out);
    for (size_t i = 0; i < r->event_count; i++)
        s->next = MAX_OF(s->next, r->events[i].kv.mod_revision + 1);
    out->events = r->event_count > 0;
    return ETCD_STREAM_ON;
}

/* 0, or a negative code with why in out->err. */
static int read(const struct etcd_http *http, struct etcd_stream_news *out)
{
    int rc = etcd3_decode(http, ETCD3_EXPECT_WATCH, &out->reply, &out->err);

    if (rc == 0 && out->reply.error) {
        out->token = out->reply.error == ETCD3_UNAUTHENTICATED ||
                     etcd3_token_outdated(&out->reply);
        rc = etcd3_error(&out->reply, &out->err);
    }
    return rc;
}

enum etcd_stream_next etcd_stream_line(struct etcd_stream *s, struct span line,
                                       struct etcd_stream_news *out)
{
    const struct etcd_http http = { 200, 0, line };

    *out = (struct etcd_stream_news){ .missed = false };
    return read(&http, out) < 0 ? ETCD_STREAM_FAILED : on_message(s, out);
}

enum etcd_stream_next etcd_stream_ended(const struct etcd_http *http,
                                        struct etcd_stream_news *out)
{
    *out = (struct etcd_stream_news){ .missed = false };
    if (http->status == 200 || read(http, out) == 0)
        err_set(&out->err, MUSTER_EHANGUP, "the stream ended");
    return ETCD_STREAM_FAILED;
}
