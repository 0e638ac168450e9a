/* verdict.c - see verdict.h. */
#include "job/core/verdict.h"
#include "base/duration.h"
#include "job/core/cause.h"
#include "logs/core/last_words.h"

#include <assert.h>
#include <inttypes.h>

#define RED            "\033[31m"
#define DIM            "\033[2m"
#define PLAIN          "\033[0m"
#define EQUAL_SHOWN    3u       /* restarts with one cause, */
#define EQUAL_QUIET_US 60000000 /* and then one in a minute */
#define INDENT         "          "
#define WORDS_MAX      4 /* lines of stderr */

static void put(struct buf *out, struct span s)
{
    (void)buf_append_span(out, s);
}

bool place_shorten(struct span place, struct span *file, struct span *line)
{
    static const char head[] = "File \"", mid[] = "\", line ";
    struct span rest = span_after(place, mid);
    const struct span digits = rest;
    uint64_t n;

    if (!rest.p || !span_starts(place, head) ||
        digits.p - place.p < (ptrdiff_t)(sizeof head + sizeof mid - 2))
        return false;
    *file = span_of(place.p + sizeof head - 1,
                    place.n - rest.n - (sizeof head - 1) - (sizeof mid - 1));
    const uint8_t *slash = file->n ? memrchr(file->p, '/', file->n) : NULL;
    if (slash)
        *file = span_skip(*file, (size_t)(slash - file->p) + 1);
    (void)span_take_number(&rest, &n);
    *line = span_of(digits.p, digits.n - rest.n);
    return true;
}

static void put_short_place(struct buf *out, struct span place)
{
    struct span file, line;

    if (place_shorten(place, &file, &line))
        (void)buf_printf(out, " (%.*s:%.*s)", (int)file.n, (const char *)file.p,
                         (int)line.n, (const char *)line.p);
}

int restart_print(struct buf *out, const struct record_entry *e)
{
    if (e->cause == CAUSE_NODE_LOST) {
        put(out, e->text);
        return buf_append_str(out, ". Going on without it; this is not counted as a "
                                   "restart.");
    }
    if (e->rank >= 0) {
        (void)buf_printf(out, "rank %" PRId64 " on ", e->rank);
        put(out, e->host);
        (void)buf_append_str(out, " failed: ");
    }
    put(out, e->text);
    put_short_place(out, e->place);
    if (e->cause == CAUSE_MEMBERSHIP)
        return buf_append_str(out, ". Other workers had been stopped already, because "
                                   "nodes came or went; this is not counted as a "
                                   "restart.");
    if (e->reason == POLICY_BY_FREE) {
        (void)buf_append_str(out, ". Restarted without being counted (");
        put(out, e->rule);
        (void)buf_append_str(out, ")");
    } else if (e->total >= POLICY_UNLIMITED) {
        (void)buf_printf(out, ". Restart %" PRId64, e->count);
    } else {
        (void)buf_printf(out, ". Restart %" PRId64 " of %" PRId64, e->count, e->total);
    }
    if (e->wait_us > 0)
        (void)buf_printf(out, ", in %.1f s", (double)e->wait_us / 1e6);
    /* A budget, 5/1h; a rule has a colon, and nothing is left of it. */
    if (e->reason == POLICY_BY_COUNT && e->rule.n &&
        !memchr(e->rule.p, ':', e->rule.n)) {
        (void)buf_printf(out, "; %" PRId64 " left of ", e->left);
        put(out, e->rule);
    }
    return buf_append_str(out, ".");
}

/* Why there is no restart, with a policy. False: it is as without one. */
static bool put_refusal(struct buf *out, const struct record_entry *v)
{
    switch ((enum policy_reason)v->reason) {
    case POLICY_BY_RULE:
        if (cause_is_deterministic(v)) {
            (void)buf_append_str(out, "a restart would fail in the same way: ");
        } else {
            (void)buf_append_str(out, "the policy says ");
            put(out, v->rule);
            (void)buf_append_str(out, ": ");
        }
        (void)buf_append_str(out, "not restarted");
        return true;
    case POLICY_BY_REPEAT:
        (void)buf_append_str(out, "as in the two attempts before, without progress in "
                                  "between: not restarted");
        return true;
    case POLICY_BY_BUDGET:
        (void)buf_append_str(out,
                             "the budget of restarts is used up (--restart-budget=");
        put(out, v->rule);
        (void)buf_append_str(out, "): not restarted");
        return true;
    case POLICY_BY_NOBODY:
    case POLICY_BY_COUNT:
    case POLICY_BY_FREE:
    case POLICY_BY_LIMIT:
    case POLICY_REASONS:
        break;
    }
    return false;
}

/* Which rank it was does not matter: if all fail in the same way, one of them is first.
 */
static uint64_t cause_of(const struct record_entry *e)
{
    const struct span texts[] = { e->text, e->place };
    uint64_t hash = 0xcbf29ce484222325u ^ (uint64_t)e->cause;

    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        for (size_t k = 0; k <= texts[i].n; k++)
            hash = (hash ^ (k < texts[i].n ? texts[i].p[k] : 0)) * 0x100000001b3u;
    return hash;
}

bool restart_print_once(struct buf *out, struct restart_lines *l,
                        const struct record_entry *e)
{
    const uint64_t cause = cause_of(e);

    l->equal = cause == l->cause ? l->equal + 1 : 1;
    l->cause = cause;
    if (l->equal > EQUAL_SHOWN && e->count != e->total &&
        e->at_us - l->shown_us < EQUAL_QUIET_US && e->at_us >= l->shown_us) {
        l->skipped++;
        return false;
    }
    (void)restart_print(out, e);
    if (l->skipped)
        (void)buf_printf(out,
                         " (%" PRIu64 " restart%s with one cause before it %s not "
                         "shown.)",
                         l->skipped, l->skipped == 1 ? "" : "s",
                         l->skipped == 1 ? "is" : "are");
    l->skipped = 0;
    l->shown_us = e->at_us;
    return true;
}

/* Which worker or node failed, and how. */
static void put_cause(struct buf *out, const struct record_entry *v)
{
    if (v->rank >= 0) {
        (void)buf_printf(out, "rank %" PRId64 " on ", v->rank);
        put(out, v->host);
        (void)buf_printf(
            out, " (local rank %" PRId64 ", pid %" PRId64 "): ", v->local_rank, v->pid);
    } else if (v->cause == CAUSE_START && v->host.n) {
        put(out, v->host);
        (void)buf_append_str(out, ": ");
    }
    put(out, v->text);
}

/* When a lost node was last heard of. */
static void put_time(struct buf *out, const struct record_entry *v, int64_t zone_s)
{
    const int64_t s = (v->at_us / 1000000 + zone_s) % 86400;

    if (v->cause == CAUSE_NODE_LOST || v->cause == CAUSE_CUT_OFF)
        (void)buf_printf(out, INDENT "it was last heard of at %02d:%02d:%02d.%03d\n",
                         (int)(s / 3600), (int)(s / 60 % 60), (int)(s % 60),
                         (int)(v->at_us / 1000 % 1000));
}

/* Another failure that may have come first, as far as the clocks can tell. */
static void put_simultaneous(struct buf *out, const struct record *r,
                             const struct record_entry *v)
{
    for (size_t i = 0; i < r->count; i++) {
        const struct record_entry f = record_at(r, i);
        const int64_t apart =
            f.at_us > v->at_us ? f.at_us - v->at_us : v->at_us - f.at_us;

        if (f.kind != RECORD_FAILED || f.round != v->round || f.count == 0)
            continue;
        (void)buf_printf(out, "muster: rank %" PRId64 " on ", f.rank);
        put(out, f.host);
        (void)buf_printf(out,
                         " failed within %.1f ms of it; the clocks do not tell which "
                         "was first: ",
                         (double)apart / 1000);
        put(out, f.text);
        (void)buf_append_str(out, "\n");
        return; /* One is enough. */
    }
}

/* Whether the last words are one line that the cause has already quoted. */
static bool is_quoted(struct span body, struct span text)
{
    if (body.n && body.p[body.n - 1] == '\n')
        body.n--;
    return body.n <= text.n && memcmp(body.p, text.p, body.n) == 0;
}

/* The last lines, unless the cause has told what is in them. */
static void put_words(struct buf *out, const struct record_entry *v,
                      const struct verdict_style *style)
{
    static const char mark[] = LAST_WORDS_SHARED;
    struct span body = v->body;
    const bool shared =
        body.n >= sizeof mark - 1 && memcmp(body.p, mark, sizeof mark - 1) == 0;
    size_t lines = 0, at;

    if (shared)
        body = span_of(body.p + sizeof mark - 1, body.n - (sizeof mark - 1));
    at = body.n;

    if (v->cause == CAUSE_EXCEPTION || v->cause == CAUSE_NODE_LOST || body.n == 0 ||
        is_quoted(body, v->text))
        return;
    while (at > 0) {
        if (body.p[at - 1] == '\n' && at < body.n && ++lines == WORDS_MAX)
            break;
        at--;
    }
    assert(at <= body.n);
    body = span_of(body.p + at, body.n - at);
    (void)buf_append_str(out, shared ? "muster: the last lines of the file that it and "
                                       "others wrote to:\n"
                                     : "muster: its last words:\n");
    while (body.n) {
        const uint8_t *nl = memchr(body.p, '\n', body.n);
        const size_t n = nl ? (size_t)(nl - body.p) : body.n;

        (void)buf_printf(out, "%s%s", style->colours ? DIM : "", INDENT);
        put(out, span_of(body.p, MIN_OF(n, 200)));
        (void)buf_printf(out, "%s\n", style->colours ? PLAIN : "");
        body = span_of(body.p + n + (nl != NULL), body.n - n - (nl != NULL));
    }
}

/* How many ranks failed first: one, or all of a lost node. */
static int64_t ranks_of(const struct record *r, const struct record_entry *v)
{
    struct record_entry round;
    struct record_ranks place;
    int64_t count = 0;

    if (v->cause != CAUSE_NODE_LOST)
        return v->rank >= 0;
    if (record_find(r, RECORD_ROUND, v->round, &round))
        while (record_ranks_next(&round.body, &place))
            count += place.node == v->node ? place.count : 0;
    return count;
}

static void put_others(struct buf *out, const struct record *r,
                       const struct record_entry *v, int exit_code)
{
    const bool of_node = v->cause == CAUSE_NODE_LOST || v->cause == CAUSE_RENDEZVOUS;
    struct record_entry ended;

    if (v->cause == CAUSE_CUT_OFF) {
        (void)buf_append_str(out,
                             "muster: its machine is down, or the network to it; if "
                             "it is up, the job may go on there without this "
                             "node\n");
        return;
    }
    const bool known = record_find(r, RECORD_ENDED, v->round, &ended);
    const int64_t others = known ? ended.total - ranks_of(r, v) : 0;
    const int64_t nodes = known ? ended.code - (v->cause == CAUSE_NODE_LOST) : 0;

    if (of_node && others <= 0 && v->body.n == 0 && exit_code == 0)
        return;

    (void)buf_append_str(out, "muster: ");
    if (others > 0)
        (void)buf_printf(out,
                         "%" PRId64 " other rank%s on %" PRId64
                         " node%s %s stopped because of it; ",
                         others, others > 1 ? "s" : "", nodes, nodes > 1 ? "s" : "",
                         others > 1 ? "were" : "was");
    if (put_refusal(out, v)) {
    } else if (of_node) { /* No restart was counted, so say what the others waited for.
                           */
        put(out,
            v->body.n ? v->body : span_str("the group could not go on without it"));
    } else if (v->cause == CAUSE_START) {
        (void)buf_append_str(out, "a restart would not change that");
    } else if (v->total <= 0) {
        (void)buf_append_str(out, "no restarts were allowed (--max-restarts)");
    } else if (v->total == 1) {
        (void)buf_append_str(out, "the one restart was used");
    } else {
        (void)buf_printf(out, "all %" PRId64 " restarts were used", v->total);
    }
    if (exit_code)
        (void)buf_printf(out, " (exit code %d)", exit_code);
    (void)buf_append_str(out, "\n");
}

static void put_where(struct buf *out, const struct record_entry *v,
                      const struct verdict_style *style)
{
    if (v->path.n) {
        (void)buf_append_str(out, "muster: its output: ");
        put(out, v->path);
        if (style->report_path)
            (void)buf_printf(out, "   the whole story: %s", style->report_path);
        else
            (void)buf_append_str(out, "   (all: --report=FILE)");
        (void)buf_append_str(out, "\n");
    } else if (style->report_path) {
        (void)buf_printf(out, "muster: the whole story: %s\n", style->report_path);
    }
}

/* The source line, which a traceback has below the line that names the place. */
static struct span source_line(const struct record_entry *v)
{
    if (v->body.n == 0)
        return span_of(NULL, 0);
    const uint8_t *end = v->body.p + v->body.n;
    const uint8_t *p = memmem(v->body.p, v->body.n, v->place.p, v->place.n);
    const uint8_t *nl = p ? memchr(p, '\n', (size_t)(end - p)) : NULL;

    if (!nl || p + v->place.n != nl)
        return span_of(NULL, 0);
    p = nl + 1;
    nl = memchr(p, '\n', (size_t)(end - p));
    const struct span line = span_of(p, (size_t)((nl ? nl : end) - p));

    return line.n > 4 && memcmp(line.p, "    ", 4) == 0 && line.p[4] != ' '
               ? span_of(line.p + 4, line.n - 4)
               : span_of(NULL, 0);
}

static void put_place(struct buf *out, const struct record_entry *v,
                      const struct verdict_style *style)
{
    const struct span source = source_line(v);

    (void)buf_append_str(out, INDENT);
    put(out, v->place);
    (void)buf_append_str(out, "\n");
    if (source.n == 0)
        return;
    (void)buf_printf(out, "%s%s  ", style->colours ? DIM : "", INDENT);
    put(out, span_of(source.p, MIN_OF(source.n, 200)));
    (void)buf_printf(out, "%s\n", style->colours ? PLAIN : "");
}

bool verdict_print(struct buf *out, const struct record *r,
                   const struct verdict_style *style)
{
    struct record_entry v;

    if (!record_find(r, RECORD_VERDICT, -1, &v) || v.cause == CAUSE_SUCCEEDED)
        return false;
    (void)buf_printf(out, "muster: %s: %s",
                     v.cause == CAUSE_CUT_OFF ? "this node was cut off"
                                              : "the job failed",
                     style->colours ? RED : "");
    put_cause(out, &v);
    (void)buf_printf(out, "%s\n", style->colours ? PLAIN : "");
    if (v.place.n)
        put_place(out, &v, style);
    put_time(out, &v, style->zone_s);
    put_simultaneous(out, r, &v);
    put_words(out, &v, style);
    put_others(out, r, &v, style->exit_code);
    put_where(out, &v, style);
    return true;
}
