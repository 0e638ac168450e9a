/* state_pickle_patch.c - reads and writes a state in which only heartbeats have
 * changed; see state_pickle.h.
 *
 * Each time is ten bytes, wherever it is. So two texts of the same length that are
 * equal except for the base64 groups that hold those bytes differ in those times
 * alone. */
#include "base/base64.h"

#include <assert.h>

#include "base/py/datetime.h"
#include "rendezvous/core/state_pickle.h"

#define GROUPS 5u /* base64 groups that ten bytes can touch, at most */

/* The part of a text that holds the ten bytes at an offset. */
struct window {
    size_t from, to; /* of the text */
    size_t skip;     /* decoded bytes before the ten */
};

static struct window window_of(uint32_t at)
{
    return (struct window){ at / 3 * 4, ((at + PYTIME_BYTES - 1) / 3 + 1) * 4, at % 3 };
}

static bool alike(struct span a, struct span b, size_t from, size_t to)
{
    assert(from <= to && to <= a.n && to <= b.n);
    return memcmp(a.p + from, b.p + from, to - from) == 0;
}

static int64_t decode(uint8_t out[GROUPS * 3], struct span text, struct window w)
{
    assert(w.from < w.to && w.to <= text.n && (w.to - w.from) / 4 <= GROUPS);
    return base64_decode(out, span_of(text.p + w.from, w.to - w.from));
}

/* Reads the time in a window that differs; false if something else in it differs,
 * too. */
static bool read_beat(struct span was, struct span text, struct window w, int64_t *us)
{
    const size_t end = w.skip + PYTIME_BYTES;
    uint8_t a[GROUPS * 3], b[GROUPS * 3];
    const int64_t n = decode(b, text, w);

    if (n < (int64_t)end || decode(a, was, w) != n || memcmp(a, b, w.skip) != 0 ||
        memcmp(a + end, b + end, (size_t)n - end) != 0)
        return false;
    return py_datetime_read(b + w.skip, us);
}

/* Walks through the windows in order. With beat NULL it only checks that nothing else
 * differs. */
static bool walk(const struct rdzv_state *s, struct span was, struct span text,
                 pickle_beat_fn beat, void *ctx)
{
    size_t pos = 0;
    int64_t us;

    for (struct participant *m = rdzv_first(s, RDZV_BEATS); m;
         m = m->next[RDZV_BEATS]) {
        const struct window w = window_of(m->beat_at);

        /* The offset is unknown or shared, or out of order. */
        if (m->beat_at == 0 || m->beat_at == s->deadline_at || w.from < pos ||
            w.to > text.n)
            return false;
        if (!beat && !alike(was, text, pos, w.from))
            return false;
        pos = w.to;
        if (alike(was, text, w.from, w.to))
            continue;
        if (!read_beat(was, text, w, &us))
            return false;
        if (beat)
            beat(ctx, m, us);
    }
    return beat || alike(was, text, pos, text.n);
}

bool pickle_only_beats(const struct rdzv_state *s, struct span was, struct span text,
                       pickle_beat_fn beat, void *ctx)
{
    return text.n && was.n == text.n && walk(s, was, text, NULL, NULL) &&
           walk(s, was, text, beat, ctx);
}

/* Whether the bytes of m's heartbeat are not shared with another value of the state. */
static bool has_its_own(const struct rdzv_state *s, const struct participant *m)
{
    if (m->beat_at == 0 || m->beat_at == s->deadline_at)
        return false;
    for (const struct participant *o = rdzv_first(s, RDZV_BEATS); o;
         o = o->next[RDZV_BEATS]) {
        if (o != m && o->beat_at == m->beat_at)
            return false;
    }
    return true;
}

int pickle_write_beat(const struct rdzv_state *s, const struct participant *m,
                      struct span was, struct buf *out)
{
    const struct window w = window_of(m->beat_at);
    uint8_t b[GROUPS * 3];
    int64_t n;
    int rc;

    if (!has_its_own(s, m) || w.to > was.n)
        return 0;
    n = decode(b, was, w);
    if (n < (int64_t)(w.skip + PYTIME_BYTES))
        return 0;
    py_datetime_write(b + w.skip, m->beat_us);
    rc = buf_append(out, was.p, w.from);
    if (rc == 0)
        rc = base64_encode(out, span_of(b, (size_t)n));
    if (rc == 0)
        rc = buf_append(out, was.p + w.to, was.n - w.to);
    return rc < 0 ? rc : 1;
}
