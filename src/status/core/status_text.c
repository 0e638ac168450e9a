/* status_text.c - see status_text.h. */
#include "status/core/status_text.h"

#include <stdlib.h>

#include "base/mem.h"
#include "job/core/verdict.h"
#include "status/core/put.h"

#define LISTED_MAX 40u /* nodes; larger jobs list only those that stand out */

/* Microseconds from a time to the moment of the answer. */
static int64_t age_us(const struct job_status *j, int64_t at_us)
{
    return MAX_OF(j->now_us - at_us, 0);
}

static void put_count(struct buf *out, int64_t n, const char *one, const char *many)
{
    put_grouped(out, n > 0 ? (uint64_t)n : 0);
    put_str(out, " ");
    put_str(out, n == 1 ? one : many);
}

/* ---- pieces ---- */

void status_ranks(struct buf *out, const struct job_node *n)
{
    if (n->first_rank < 0)
        put_str(out, "-");
    else if (n->ranks > 1)
        (void)buf_printf(out, "%lld-%lld", (long long)n->first_rank,
                         (long long)(n->first_rank + n->ranks - 1));
    else
        put_int(out, n->first_rank);
}

/* Other texts than those of Python's frames stay as they are. */
static void put_place(struct buf *out, struct span place)
{
    struct span file = place, line = { NULL, 0 };
    const bool frame = place_shorten(place, &file, &line);

    put_plain(out, file);
    put_str(out, frame ? ":" : "");
    put_plain(out, line);
}

/* "rank 3 on node2: ..." */
static void put_cause(struct buf *out, const struct record_entry *e)
{
    const bool ranked = e->rank >= 0 && e->kind != RECORD_LOST;

    if (ranked)
        (void)buf_printf(out, "rank %lld", (long long)e->rank);
    if (e->host.n) {
        put_str(out, ranked ? " on " : "");
        put_plain(out, e->host);
    }
    if (ranked || e->host.n)
        put_str(out, ": ");
    if (e->text.n)
        put_plain(out, e->text);
    else if (e->cause != CAUSE_NONE)
        put_str(out, record_cause_name(e->cause));
    if (e->place.n) {
        put_str(out, " (");
        put_place(out, e->place);
        put_str(out, ")");
    }
}

void status_restart(struct buf *out, const struct job_status *j,
                    const struct record_entry *e)
{
    put_duration(out, age_us(j, e->at_us));
    put_str(out, " ago, ");
    put_cause(out, e);
}

static void put_last_restart(struct buf *out, const struct job_status *j)
{
    for (size_t i = j->entry_count; i-- > 0;) {
        const struct record_entry e = job_entry(j, i);

        if (e.kind != RECORD_RESTART)
            continue;
        put_str(out, " (last: ");
        status_restart(out, j, &e);
        put_str(out, ")");
        return;
    }
}

void status_headline(struct buf *out, const struct job_status *j, size_t id_max)
{
    if (job_is_store(j)) {
        put_str(out, "muster store ");
        put_plain(out, j->endpoint);
        if (j->began_us > 0) {
            put_str(out, ", serving ");
            put_duration(out, age_us(j, j->began_us));
        }
        return;
    }
    put_plain_cut(out, j->run_id, id_max);
    put_str(out, "   ");
    put_str(out, job_state_word(j->state));
    put_str(out, " ");
    put_duration(out, age_us(j, j->began_us));
    if (j->round >= 0)
        (void)buf_printf(out, ", round %lld", (long long)j->round);
    put_str(out, ", ");
    put_count(out, j->nodes_in, "node", "nodes");
    put_str(out, ", ");
    put_count(out, j->ranks, "rank", "ranks");
    put_str(out, ", ");
    put_count(out, j->restarts, "restart", "restarts");
    if (j->reason && j->restarts_left >= 0)
        (void)buf_printf(out, " (%lld left)", (long long)j->restarts_left);
}

/* The use of the CPU by a rank of a running node, in percent; -1: not known. */
static double cpu_of_rank(const struct job_node *n)
{
    return n->state == NODE_RUNNING && n->reported && n->ranks > 0
               ? (double)n->cpu / 10 / (double)n->ranks
               : -1;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double status_median(const struct job_status *j)
{
    double *all = mem_alloc((j->count + 1) * sizeof *all), mid = -1;
    size_t count = 0;

    for (size_t i = 0; all && i < j->count; i++) {
        all[count] = cpu_of_rank(&j->nodes[i]);
        count += all[count] >= 0;
    }
    if (count >= 3) {
        qsort(all, count, sizeof *all, by_value);
        mid = all[count / 2];
    }
    mem_free(all);
    return mid;
}

/* Whether the use of the CPU is far from the median: below half or above twice. */
static bool cpu_differs(const struct job_node *n, double median)
{
    const double own = cpu_of_rank(n);

    return median >= 5 && own >= 0 && (own < median / 2 || own > median * 2);
}

/* "8 GPUs 93 % busy, 512.0 of 640.0 GiB" */
static void put_gpus(struct buf *out, const struct job_node *n)
{
    uint64_t memory = 0, total = 0;
    double busy = 0;

    for (size_t i = 0; i < n->gpu_count; i++) {
        busy += n->gpus[i].busy;
        memory += n->gpus[i].memory;
        total += n->gpus[i].memory_total;
    }
    put_count(out, (int64_t)n->gpu_count, "GPU", "GPUs");
    (void)buf_printf(out, " %.0f %% busy, ", busy / (double)n->gpu_count);
    put_bytes(out, memory);
    put_str(out, " of ");
    put_bytes(out, total);
}

void status_remark(struct buf *out, const struct job_status *j,
                   const struct job_node *n, double median)
{
    const char *sep = "";

    if (n->since_us > 0 && (n->state == NODE_LOST || n->state == NODE_LEFT ||
                            n->state == NODE_SPARE || n->state == NODE_JOINING)) {
        put_str(out, "since ");
        put_duration(out, age_us(j, n->since_us));
        sep = ", ";
    }
    if (n->coordinates) {
        (void)buf_printf(out, "%scoordinator", sep);
        sep = ", ";
    }
    if (n->gpu_count) {
        put_str(out, sep);
        put_gpus(out, n);
        sep = ", ";
    }
    if (n->store.present) {
        put_str(out, sep);
        put_count(out, n->store.rate, "request/s", "requests/s");
        sep = ", ";
    }
    if (n->why.n || n->wait.n) {
        put_str(out, sep);
        put_plain(out, n->why.n ? n->why : n->wait);
        sep = ", ";
    }
    if (n->version.n && !span_eq(n->version, j->version)) {
        (void)buf_printf(out, "%smuster ", sep);
        put_plain(out, n->version);
        sep = ", ";
    }
    if (cpu_differs(n, median))
        (void)buf_printf(out, "%s<- the others use about %.0f %% CPU", sep,
                         median * (double)n->ranks);
}

/* ---- the table ---- */

enum column { NODE, RANKS, STATE, WORKERS, CPU, MEMORY, COLUMNS };

static const char *const titles[COLUMNS] = { "node",    "ranks", "state",
                                             "workers", "CPU",   "memory" };

static void put_cell(struct buf *out, const struct job_node *n, enum column c)
{
    switch (c) {
    case NODE:
        put_plain_cut(out, n->host, 30);
        break;
    case RANKS:
        status_ranks(out, n);
        break;
    case STATE:
        put_str(out, node_state_word(n->state));
        break;
    case WORKERS:
        if (n->reported)
            put_int(out, n->alive);
        break;
    case CPU:
        if (n->reported)
            (void)buf_printf(out, "%.0f %%", (double)n->cpu / 10);
        break;
    case MEMORY:
        if (n->reported)
            put_bytes(out, n->memory);
        break;
    case COLUMNS:
        break;
    }
}

static void pad(struct buf *out, size_t n)
{
    while (n-- > 0)
        (void)buf_u8(out, ' ');
}

static size_t cell_width(const struct job_node *n, enum column c)
{
    struct buf b;

    buf_init(&b, SIZE_MAX);
    put_cell(&b, n, c);
    const size_t width = plain_width(buf_span(&b));
    buf_fini(&b);
    return width;
}

/* In a large job only nodes that stand out are listed. */
static bool is_listed(const struct job_status *j, const struct job_node *n,
                      double median)
{
    return j->count <= LISTED_MAX || n->state != NODE_RUNNING || n->store.present ||
           n->self || cpu_differs(n, median);
}

static const char *color_of(enum node_state state)
{
    if (state == NODE_LOST)
        return "\033[31m";
    return state == NODE_RUNNING || state == NODE_ENDED ? NULL : "\033[33m";
}

static void put_row(struct buf *out, const struct job_node *n, const size_t *widths,
                    struct span remark, const struct status_style *style)
{
    const char *color = style->color ? color_of(n->state) : NULL;
    size_t used = 2;

    put_str(out, "  ");
    if (color)
        put_str(out, color);
    for (enum column c = NODE; c < COLUMNS; c++) {
        put_cell(out, n, c);
        if (c + 1 < COLUMNS || remark.n)
            pad(out, widths[c] - cell_width(n, c) + 2);
        used += widths[c] + 2;
    }
    if (color)
        put_str(out, "\033[0m");
    if (remark.n && style->columns > used + 20) {
        put_plain_cut(out, remark, style->columns - used);
    } else if (remark.n) { /* Too narrow: it gets a line of its own. */
        put_str(out, "\n      ");
        put_plain_cut(out, remark, style->columns > 20 ? style->columns - 6 : 60);
    }
    put_str(out, "\n");
}

static void put_workers(struct buf *out, const struct job_status *j,
                        const struct job_node *n)
{
    for (size_t i = 0; i < job_workers_listed(j, n); i++) {
        const struct worker_status *w = i < n->worker_count ? &n->workers[i] : NULL;
        const enum worker_state state = job_worker_state(n, i);

        (void)buf_printf(out, "      rank %-5lld pid %-8lld %s",
                         (long long)job_rank(n, i), (long long)(w ? w->pid : 0),
                         worker_state_word(state));
        if (job_worker_has_code(state))
            (void)buf_printf(out, " (%d)", w ? w->code : 0);
        if (w && n->reported) {
            (void)buf_printf(out, "  %.0f %%  ", (double)w->cpu / 10);
            put_bytes(out, w->memory);
        }
        put_str(out, "\n");
    }
}

static void put_nodes(struct buf *out, const struct job_status *j,
                      const struct status_style *style)
{
    const double median = status_median(j);
    size_t widths[COLUMNS], folded = 0;
    struct buf remark;

    if (j->count == 0)
        return;
    for (enum column c = NODE; c < COLUMNS; c++) {
        widths[c] = strlen(titles[c]);
        for (size_t i = 0; i < j->count; i++)
            if (is_listed(j, &j->nodes[i], median))
                widths[c] = MAX_OF(widths[c], cell_width(&j->nodes[i], c));
    }
    put_str(out, "  ");
    for (enum column c = NODE; c < COLUMNS; c++) {
        put_str(out, titles[c]);
        if (c + 1 < COLUMNS)
            pad(out, widths[c] - strlen(titles[c]) + 2);
    }
    put_str(out, "\n");
    buf_init(&remark, SIZE_MAX);
    for (size_t i = 0; i < j->count; i++) {
        const struct job_node *n = &j->nodes[i];

        if (!is_listed(j, n, median)) {
            folded++;
            continue;
        }
        buf_clear(&remark);
        status_remark(&remark, j, n, median);
        put_row(out, n, widths, buf_span(&remark), style);
        if (style->workers)
            put_workers(out, j, n);
    }
    buf_fini(&remark);
    if (folded) {
        put_str(out, "  and ");
        put_count(out, (int64_t)folded, "node", "nodes");
        put_str(out, " running as they should (--json lists them)\n");
    }
}

/* The entry that says best why a round ended: the verdict, its restart, a failure in
 * it, the node that was lost; else its end itself. */
static struct record_entry cause_of_round(const struct job_status *j,
                                          const struct record_entry *ended)
{
    static const enum record_kind kinds[] = { RECORD_VERDICT, RECORD_RESTART,
                                              RECORD_FAILED, RECORD_LOST };

    for (size_t k = 0; k < ARRAY_LEN(kinds); k++)
        for (size_t i = 0; i < j->entry_count; i++) {
            const struct record_entry e = job_entry(j, i);

            if (e.kind == kinds[k] && e.round == ended->round)
                return e;
        }
    return *ended;
}

static void put_rounds(struct buf *out, const struct job_status *j)
{
    size_t shown = 0, total = 0;

    for (size_t i = 0; i < j->entry_count; i++)
        total += job_entry(j, i).kind == RECORD_ENDED;
    for (size_t i = 0; i < j->entry_count; i++) {
        const struct record_entry e = job_entry(j, i);

        if (e.kind != RECORD_ENDED)
            continue;
        if (++shown + 5 <= total)
            continue; /* Only the last few rounds are shown. */
        const struct record_entry cause = cause_of_round(j, &e);
        (void)buf_printf(out, "  round %lld ended ",
                         (long long)MAX_OF(e.round, (int64_t)0));
        put_duration(out, age_us(j, e.at_us));
        put_str(out, " ago: ");
        put_cause(out, &cause);
        put_str(out, "\n");
    }
}

/* Those that the shared state tells of, and that have not told of themselves. */
static void put_spares(struct buf *out, const struct job_status *j)
{
    struct span rest = j->spares, name;
    struct buf names;
    size_t count = 0;

    buf_init(&names, SIZE_MAX);
    while (job_spare_next(j, &rest, &name)) {
        put_str(&names, count++ ? ", " : "");
        put_plain(&names, name);
    }
    if (count) {
        put_str(out, "  waiting as ");
        put_str(out, count == 1 ? "a spare: " : "spares: ");
        (void)buf_append_span(out, buf_span(&names));
        put_str(out, "\n");
    }
    buf_fini(&names);
}

static void put_store(struct buf *out, const struct store_status *s)
{
    put_str(out, "  store: ");
    put_count(out, (int64_t)s->connections, "connection", "connections");
    put_str(out, ", ");
    put_count(out, (int64_t)s->keys, "key", "keys");
    put_str(out, ", ");
    put_grouped(out, s->requests);
    put_str(out, " requests");
    if (s->rate) {
        put_str(out, " (");
        put_grouped(out, s->rate);
        put_str(out, "/s)");
    }
    put_str(out, "\n");
}

void status_text(struct buf *out, const struct job_status *j,
                 const struct status_style *s)
{
    status_headline(out, j, SIZE_MAX);
    put_last_restart(out, j);
    put_str(out, "\n");
    put_nodes(out, j, s);
    put_spares(out, j);
    if (j->torch_nodes > 0) {
        put_str(out, "  and ");
        put_count(out, j->torch_nodes, "node", "nodes");
        put_str(out, " of torchrun, which cannot be asked\n");
    }
    if (j->store.present)
        put_store(out, &j->store);
    put_rounds(out, j);
    if (j->have_verdict) {
        put_str(out, s->color ? "  \033[31mended:\033[0m " : "  ended: ");
        put_cause(out, &j->verdict);
        put_str(out, "\n");
    }
    if (j->alone.n) {
        put_str(out, "  about this node alone: ");
        put_plain(out, j->alone);
        put_str(out, "\n");
    }
}
