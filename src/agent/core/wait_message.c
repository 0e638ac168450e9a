/* wait_message.c - see wait_message.h. */
#include "agent/core/wait_message.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* " (until 14:03:20, 588 s more)". It follows what is waited for: a narrow terminal
 * cuts the line off at its end. */
static int print_until(struct buf *b, const struct waiting *w, uint64_t by_ms,
                       const char *until)
{
    const uint64_t left = by_ms > w->now_ms ? (by_ms - w->now_ms + 999) / 1000 : 0;
    const uint64_t at = ((uint64_t)w->wall_s + left) % 86400;

    if (by_ms == MONO_NEVER)
        return 0;
    return buf_printf(
        b, " (%s %02" PRIu64 ":%02" PRIu64 ":%02" PRIu64 ", %" PRIu64 " s more)", until,
        at / 3600, at / 60 % 60, at % 60, left);
}

static int64_t here(const struct waiting *w)
{
    return w->ranks ? w->ranks->count : w->progress->here;
}

/* Whom the round lacks: by name as far as known, and how many more. */
static int print_missing(struct buf *b, const struct waiting *w)
{
    const struct rdzv_progress *p = w->progress;
    const int64_t count = p->min_nodes - here(w);
    char names[RDZV_NAMES_SIZE];

    if (w->ranks && w->ranks->world == p->min_nodes) {
        const int rc = buf_append_str(b, ", missing: ");
        return rc ? rc : missing_ranks_print(b, w->ranks);
    }
    assert(count > 0);
    memcpy(names, p->missing, sizeof names);
    if (p->names[0] && names_count(w->expected) == (size_t)p->max_nodes)
        names_without(w->expected, p->names, names);
    if (!names[0])
        return buf_printf(b, ", %" PRId64 " missing", count);
    if ((int64_t)names_count(names) >= count)
        return buf_printf(b, ", missing: %s", names);
    return buf_printf(b, ", missing: %s and %" PRId64 " more", names,
                      count - (int64_t)names_count(names));
}

static int print_why(struct buf *b, const struct rdzv_progress *p, const char *before)
{
    return p->why[0] ? buf_printf(b, "%s%s", before, p->why) : 0;
}

static int print_gone(struct buf *b, const struct waiting *w)
{
    const struct gone_nodes *g = &w->gone;
    const uint64_t s = (w->now_ms - MIN_OF(g->at_ms, w->now_ms)) / 1000;

    if (g->count == 0)
        return 0;
    if (g->count > 1)
        return buf_printf(b,
                          "; %" PRId64
                          " nodes of the last round are gone, the last one "
                          "(%s) for %" PRIu64 " s",
                          g->count, g->last, s);
    return buf_printf(b, "; %s %s %" PRIu64 " s ago", g->last,
                      g->lost ? "was lost" : "left", s);
}

static int print_round(struct buf *b, const struct waiting *w)
{
    const struct rdzv_progress *p = w->progress;
    const bool enough = here(w) >= p->min_nodes;
    const bool called = enough && p->start_by_ms != MONO_NEVER;
    int rc;

    if (enough)
        rc = buf_printf(b, "%" PRId64 " of at most %" PRId64 " nodes are here", here(w),
                        p->max_nodes);
    else
        rc = buf_printf(b, "%" PRId64 " of %" PRId64 " nodes are here", here(w),
                        p->min_nodes);
    if (rc == 0 && !enough)
        rc = print_missing(b, w);
    if (rc == 0)
        rc = called ? print_until(b, w, p->start_by_ms, "starting at")
                    : print_until(b, w, p->by_ms, "until");
    if (rc == 0 && p->names[0])
        rc = buf_printf(b, "; here: %s", p->names);
    if (rc == 0 && !called)
        rc = print_gone(b, w);
    return rc ? rc : print_why(b, p, "; ");
}

static int print_rendezvous(struct buf *b, const struct waiting *w)
{
    const struct rdzv_progress *p = w->progress;
    const char *why = "; ";
    int rc = 0;

    switch (p->stage) {
    case RDZV_AT_ROUND:
        return print_round(b, w);
    case RDZV_AT_STORE:
        rc = buf_printf(b, "the store at %s has not been reached",
                        w->store[0] ? w->store : "its usual address");
        why = ": ";
        break;
    case RDZV_AT_SPARE:
        rc = buf_printf(b, "a spare, since all %" PRId64 " places are taken",
                        p->max_nodes);
        break;
    case RDZV_AT_ADDRESS:
        rc = buf_append_str(
            b, "the group is complete, and node rank 0 has to tell where its workers' "
               "store is");
        break;
    case RDZV_AT_NEXT:
        rc = buf_append_str(b, "the group is at work in a round without this node");
        break;
    }
    if (rc == 0)
        rc = print_until(b, w, p->by_ms, "until");
    return rc ? rc : print_why(b, p, why);
}

/* ---- After the rendezvous ---- */

static int print_nodes(struct buf *b, const struct waiting *w)
{
    const struct missing_ranks *r = w->ranks;
    int rc;

    if (!r || r->count == r->world)
        return buf_append_str(b,
                              "the nodes of this round have to tell how many workers "
                              "they start");
    rc = buf_printf(b,
                    "%" PRId64 " of %" PRId64 " nodes are here to get ranks, missing: ",
                    r->count, r->world);
    return rc ? rc : missing_ranks_print(b, r);
}

static int print_end(struct buf *b, const struct waiting *w)
{
    if (w->done < 1 || w->done >= w->world)
        return buf_append_str(b, "this node is done, others are not");
    assert(w->world > 1);
    return buf_printf(b, "%" PRId64 " of %" PRId64 " nodes are done, %" PRId64 " %s",
                      w->done, w->world, w->world - w->done,
                      w->closed ? "not" : "at work");
}

static int print_closed(struct buf *b, const struct waiting *w)
{
    if (w->what != WAITING_FOR_END || !w->closed || w->done < 1 || w->done >= w->world)
        return 0;
    return buf_append_str(b,
                          "; another node has closed the run: it failed, or was ended");
}

int waiting_print(struct buf *b, const struct waiting *w)
{
    int rc = buf_printf(b, "waiting %" PRIu64 " s: ",
                        (w->now_ms - MIN_OF(w->since_ms, w->now_ms)) / 1000);

    if (rc)
        return rc;
    switch (w->what) {
    case WAITING_FOR_ROUND:
        return print_rendezvous(b, w);
    case WAITING_FOR_NODES:
        rc = print_nodes(b, w);
        break;
    case WAITING_FOR_RANKS:
        rc = buf_append_str(b, "node rank 0 has not given out ranks; its log tells "
                               "which nodes are missing");
        break;
    case WAITING_FOR_END:
        rc = print_end(b, w);
        break;
    }
    if (rc == 0)
        rc = print_until(b, w, w->by_ms, "until");
    return rc ? rc : print_closed(b, w);
}

/* ---- Slurm's host lists ---- */

/* Adds prefix and each number of "03-05" to the list; `text` ends at one of ",]". */
static bool add_range(char *to, struct span prefix, const char *text, size_t n)
{
    char name[300], *end;
    const unsigned long from = strtoul(text, &end, 10);
    const int width = (int)(end - text);
    const unsigned long last = *end == '-' ? strtoul(end + 1, &end, 10) : from;

    if (width == 0 || end != text + n || last < from || last - from >= RDZV_NAMES_MAX ||
        prefix.n > 200)
        return false;
    for (unsigned long i = from; i <= last; i++) {
        (void)snprintf(name, sizeof name, "%.*s%0*lu", (int)prefix.n,
                       (const char *)prefix.p, width, i);
        if (!names_add(to, span_str(name)))
            return false;
    }
    return true;
}

static bool add_names(char *to, const char *p)
{
    while (*p) {
        const struct span prefix = span_of(p, strcspn(p, "[,"));

        p += prefix.n;
        if (*p != '[') {
            if (prefix.n == 0 || !names_add(to, prefix))
                return false;
        } else {
            do {
                const size_t n = strcspn(++p, ",]");

                if (!add_range(to, prefix, p, n))
                    return false;
                p += n;
            } while (*p == ',');
            if (*p++ != ']' || (*p && *p != ',')) /* or a suffix: rare, not listed */
                return false;
        }
        p += *p == ',';
    }
    return true;
}

void waiting_slurm_names(const char *list, char *to)
{
    *to = '\0';
    if (!add_names(to, list))
        *to = '\0';
}

int stopping_print(struct buf *b, int64_t workers, uint64_t left_ms, bool again)
{
    (void)buf_printf(b, "stopping %" PRId64 " worker%s", workers,
                     workers == 1 ? "" : "s");
    if (left_ms != MONO_NEVER)
        (void)buf_printf(b, ", %" PRIu64 " s", (left_ms + 999) / 1000);
    if (again)
        (void)buf_append_str(b, " (Ctrl-C again kills them)");
    return buf_error(b);
}
