/* progress.c - see progress.h. */
#include "rendezvous/core/progress.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/escape.h"
#include "rendezvous/core/cas_node_int.h"

void progress_why(struct rdzv_progress *p, const char *text)
{
    (void)snprintf(p->why, sizeof p->why, "%.*s", (int)sizeof p->why - 1, text);
    for (char *c = p->why; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = '?';
}

#define OTHERS_NAMED 4u

/* Takes the next "COUNT ID" line off the answer; false at its end or at a malformed
 * line. */
static bool next_run(struct span *answer, unsigned long *count, struct span *id)
{
    const uint8_t *end =
        memchr(answer->p ? answer->p : (const uint8_t *)"", '\n', answer->n);
    const size_t n = end ? (size_t)(end - answer->p) : 0;
    const uint8_t *space = n ? memchr(answer->p, ' ', n) : NULL;
    char digits[8] = "";

    if (!space || space == answer->p || (size_t)(space - answer->p) >= sizeof digits)
        return false;
    memcpy(digits, answer->p, (size_t)(space - answer->p));
    *count = strtoul(digits, NULL, 10);
    *id = span_of(space + 1, n - (size_t)(space + 1 - answer->p));
    answer->p += n + 1;
    answer->n -= n + 1;
    return true;
}

void progress_other_runs(struct span answer, const char *run_id, char *to, size_t size)
{
    unsigned others = 0;
    unsigned long count;
    struct span id;
    struct buf b;

    *to = '\0';
    buf_init(&b, size);
    while (next_run(&answer, &count, &id)) {
        char name[48];

        if (span_eq(id, span_str(run_id)) || count == 0 || ++others > OTHERS_NAMED)
            continue;
        (void)buf_printf(&b, "%s'%s' (%lu node%s)",
                         others > 1 ? ", " : "this store also has other runs: ",
                         escape_text(name, sizeof name, id), count,
                         count == 1 ? "" : "s");
    }
    if (others > OTHERS_NAMED)
        (void)buf_printf(&b, " and %u more", others - OTHERS_NAMED);
    if (others > 0)
        (void)buf_append_str(&b, "; is --rdzv-id the same on all nodes?");
    (void)snprintf(to, size, "%.*s", (int)buf_len(&b), (const char *)buf_data(&b));
    buf_fini(&b);
}

size_t names_count(const char *list)
{
    size_t n = *list ? 1 : 0;

    for (; *list; list++)
        n += *list == ',';
    return n;
}

bool names_add(char *list, struct span addr)
{
    const struct span name = rdzv_unordered_addr(addr);
    size_t at = strlen(list);

    if (names_count(list) == RDZV_NAMES_MAX || at + name.n + 3 > RDZV_NAMES_SIZE) {
        *list = '\0';
        return false;
    }
    if (at) {
        list[at++] = ',';
        list[at++] = ' ';
    }
    for (size_t i = 0; i < name.n; i++) {
        const uint8_t c = name.p[i];

        list[at++] = c > ' ' && c != ',' && c != 0x7f ? (char)c : '?';
    }
    list[at] = '\0';
    assert(at < RDZV_NAMES_SIZE);
    return true;
}

void names_of(const struct rdzv_state *s, enum rdzv_list list, char *to)
{
    *to = '\0';
    if (rdzv_count(s, list) > RDZV_NAMES_MAX)
        return;
    for (const struct participant *m = rdzv_first(s, list); m; m = m->next[list])
        if (!names_add(to, m->node.addr))
            return;
}

void names_copy(char *to, struct span list)
{
    *to = '\0';
    while (list.n) {
        const uint8_t *comma = memchr(list.p, ',', list.n);
        const size_t n = comma ? (size_t)(comma - list.p) : list.n;
        const size_t skip = MIN_OF(list.n, n + 2);

        assert(n <= list.n && skip <= list.n);
        if (!names_add(to, span_of(list.p, n)))
            return;
        list = span_of(list.p + skip, list.n - skip);
    }
}

/* Returns the next name of a list, which must not be empty, and moves *list past it. */
static struct span next_name(const char **list)
{
    const char *from = *list;
    const size_t n = strcspn(from, ",");

    assert(*from);
    *list = from + n;
    *list += strspn(*list, ", ");
    return span_of(from, n);
}

static bool same_host(struct span a, struct span b)
{
    const struct span longer = a.n > b.n ? a : b, shorter = a.n > b.n ? b : a;

    return memcmp(longer.p, shorter.p, shorter.n) == 0 &&
           (longer.n == shorter.n ||
            (longer.p[shorter.n] == '.' && !memchr(shorter.p, '.', shorter.n)));
}

void names_without(const char *all, const char *here, char *to)
{
    bool taken[RDZV_NAMES_MAX] = { false };

    *to = '\0';
    while (*all) {
        const struct span name = next_name(&all);
        const char *rest = here;
        bool found = false;

        for (size_t i = 0; *rest && i < RDZV_NAMES_MAX && !found; i++) {
            found = same_host(name, next_name(&rest)) && !taken[i];
            taken[i] = taken[i] || found;
        }
        if (!found)
            (void)names_add(to, name);
    }
}

bool rdzv_progress(const struct rdzv *r, struct rdzv_progress *out)
{
    const struct rdzv_state *s = &r->seen;
    const struct participant *me = rdzv_state_find(s, &r->self);
    char last[RDZV_NAMES_SIZE] = "";

    if (r->mode != MODE_JOINING)
        return false;
    *out = (struct rdzv_progress){ .stage = RDZV_AT_ROUND,
                                   .min_nodes = r->settings.min_nodes,
                                   .max_nodes = r->settings.max_nodes,
                                   .by_ms = r->join_by_ms,
                                   .start_by_ms = MONO_NEVER };
    if (rdzv_in(me, RDZV_SPARES))
        out->stage = RDZV_AT_SPARE;
    else if (s->complete)
        out->stage = RDZV_AT_NEXT;
    if (out->stage != RDZV_AT_ROUND)
        return true;
    out->here = (int64_t)rdzv_count(s, RDZV_PLACES);
    names_of(s, RDZV_PLACES, out->names);
    if (s->deadline_us != WALL_NEVER)
        out->start_by_ms = r->call_since_ms + r->settings.last_call_ms;
    for (size_t i = 0; i < r->roster.count && r->roster.count <= RDZV_NAMES_MAX; i++)
        if (!names_add(last, r->roster.nodes[i].addr))
            break;
    names_without(last, out->names, out->missing);
    return true;
}

void rdzv_spares(const struct rdzv *r, char *to)
{
    const struct participant *m = rdzv_first(&r->seen, RDZV_SPARES);
    const struct participant *me = rdzv_state_find(&r->seen, &r->self);

    *to = '\0';
    for (; m && names_count(to) < RDZV_NAMES_MAX; m = m->next[RDZV_SPARES])
        if (m != me && !names_add(to, m->node.addr))
            return;
}
