/* status_text.c - see status_text.h. */
#include "status/core/status_text.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "status/core/put.h"

#define LISTED_MAX 40u /* nodes; larger jobs list only those that stand out */

struct span json_span(const json_t *object, const char *key)
{
    const json_t *text = json_object_get(object, key);

    return json_is_string(text)
               ? span_of(json_string_value(text), json_string_length(text))
               : span_of(NULL, 0);
}

double json_num(const json_t *object, const char *key, double otherwise)
{
    const json_t *n = json_object_get(object, key);

    return json_is_number(n) ? json_number_value(n) : otherwise;
}

/* This avoids fmax(), for which alone every job would have to load libm. */
uint64_t json_count(const json_t *object, const char *key)
{
    const double n = json_num(object, key, 0);

    return n > 0 && n < 1e18 ? (uint64_t)n : 0;
}

static int64_t whole(const json_t *object, const char *key, int64_t otherwise)
{
    const double v = json_num(object, key, (double)otherwise);

    return v > -9e15 && v < 9e15 ? (int64_t)v : otherwise;
}

static bool is_text(const json_t *object, const char *key, const char *text)
{
    return span_eq(json_span(object, key), span_str(text));
}

/* Microseconds from a time in the JSON to the moment of the answer. */
static int64_t age_us(const json_t *status, double at)
{
    const double d = (json_num(status, "at", 0) - at) * 1e6;

    return d > 0 && d < 9e15 ? (int64_t)d : 0;
}

static void put_count(struct buf *out, int64_t n, const char *one, const char *many)
{
    put_grouped(out, n > 0 ? (uint64_t)n : 0);
    put_str(out, " ");
    put_str(out, n == 1 ? one : many);
}

/* ---- pieces ---- */

void status_ranks(struct buf *out, const json_t *node)
{
    const int64_t first = whole(node, "first_rank", -1), n = whole(node, "ranks", 0);

    if (first < 0)
        put_str(out, "-");
    else if (n > 1)
        (void)buf_printf(out, "%lld-%lld", (long long)first,
                         (long long)(first + n - 1));
    else
        put_int(out, first);
}

/* Shortens 'File "/x/train.py", line 41, in load' to 'train.py:41'. Other texts stay as
 * they are. */
static void put_place(struct buf *out, struct span place)
{
    static const char before[] = "File \"", between[] = "\", line ";
    const size_t skip = sizeof before - 1;
    const uint8_t *end = place.n > skip && memcmp(place.p, before, skip) == 0
                             ? memmem(place.p, place.n, between, sizeof between - 1)
                             : NULL;
    const uint8_t *from = place.p + skip, *number;

    if (!end) {
        put_plain(out, place);
        return;
    }
    for (const uint8_t *p = from; p < end; p++)
        if (*p == '/')
            from = p + 1;
    put_plain(out, span_of(from, (size_t)(end - from)));
    put_str(out, ":");
    number = end + sizeof between - 1;
    for (end = number; end < place.p + place.n && *end >= '0' && *end <= '9';)
        end++;
    put_plain(out, span_of(number, (size_t)(end - number)));
}

/* "rank 3 on node2: ..." */
static void status_cause(struct buf *out, const json_t *entry)
{
    const int64_t rank = whole(entry, "rank", -1);
    const struct span host = json_span(entry, "host"), text = json_span(entry, "text"),
                      cause = json_span(entry, "cause"),
                      place = json_span(entry, "place");

    if (rank >= 0)
        (void)buf_printf(out, "rank %lld", (long long)rank);
    if (host.n) {
        put_str(out, rank >= 0 ? " on " : "");
        put_plain(out, host);
    }
    if (rank >= 0 || host.n)
        put_str(out, ": ");
    put_plain(out, text.n ? text : cause);
    if (place.n) {
        put_str(out, " (");
        put_place(out, place);
        put_str(out, ")");
    }
}

bool status_is_restart(const json_t *entry)
{
    return is_text(entry, "kind", "RESTART");
}

void status_restart(struct buf *out, const json_t *status, const json_t *entry)
{
    put_duration(out, age_us(status, json_num(entry, "at", 0)));
    put_str(out, " ago, ");
    status_cause(out, entry);
}

static void put_last_restart(struct buf *out, const json_t *status)
{
    const json_t *history = json_object_get(status, "history");

    for (size_t i = json_array_size(history); i-- > 0;)
        if (status_is_restart(json_array_get(history, i))) {
            put_str(out, " (last: ");
            status_restart(out, status, json_array_get(history, i));
            put_str(out, ")");
            return;
        }
}

static void put_store_line(struct buf *out, const json_t *status)
{
    const json_t *job = json_object_get(status, "job");

    put_str(out, "muster store ");
    put_plain(out, json_span(job, "endpoint"));
    if (json_is_number(json_object_get(job, "began"))) {
        put_str(out, ", serving ");
        put_duration(out, age_us(status, json_num(job, "began", 0)));
    }
}

void status_headline(struct buf *out, const json_t *status, size_t id_max)
{
    const json_t *job = json_object_get(status, "job");
    const int64_t round = whole(job, "round", -1);

    if (is_text(status, "scope", "store")) {
        put_store_line(out, status);
        return;
    }
    put_plain_cut(out, json_span(job, "run_id"), id_max);
    put_str(out, "   ");
    put_plain(out, json_span(job, "state"));
    put_str(out, " ");
    put_duration(out, age_us(status, json_num(job, "began", 0)));
    if (round >= 0)
        (void)buf_printf(out, ", round %lld", (long long)round);
    put_str(out, ", ");
    put_count(out, whole(job, "nodes", 0), "node", "nodes");
    put_str(out, ", ");
    put_count(out, whole(job, "ranks", 0), "rank", "ranks");
    put_str(out, ", ");
    put_count(out, whole(job, "restarts", 0), "restart", "restarts");
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double status_median(const json_t *status)
{
    const json_t *nodes = json_object_get(status, "nodes"), *node;
    double *all = mem_alloc((json_array_size(nodes) + 1) * sizeof *all), mid = -1;
    size_t count = 0, i;

    json_array_foreach(nodes, i, node)
    {
        const double ranks = json_num(node, "ranks", 0);

        if (all && is_text(node, "state", "running") && json_object_get(node, "cpu") &&
            ranks > 0)
            all[count++] = json_num(node, "cpu", 0) / ranks;
    }
    if (count >= 3) {
        qsort(all, count, sizeof *all, by_value);
        mid = all[count / 2];
    }
    mem_free(all);
    return mid;
}

/* Whether a node's CPU use is far from the median: below half or above twice. */
static bool status_differs(const json_t *node, double median)
{
    const double ranks = json_num(node, "ranks", 0);
    const double own = ranks > 0 ? json_num(node, "cpu", 0) / ranks : 0;

    return median >= 5 && is_text(node, "state", "running") && ranks > 0 &&
           json_object_get(node, "cpu") && (own < median / 2 || own > median * 2);
}

/* "8 GPUs 93 % busy, 512.0 of 640.0 GiB" */
static void put_gpus(struct buf *out, const json_t *gpus)
{
    uint64_t memory = 0, total = 0;
    const json_t *g;
    double busy = 0;
    size_t i;

    json_array_foreach(gpus, i, g)
    {
        busy += json_num(g, "utilization", 0);
        memory += json_count(g, "memory");
        total += json_count(g, "memory_total");
    }
    put_count(out, (int64_t)json_array_size(gpus), "GPU", "GPUs");
    (void)buf_printf(out, " %.0f %% busy, ", busy / (double)json_array_size(gpus));
    put_bytes(out, memory);
    put_str(out, " of ");
    put_bytes(out, total);
}

void status_remark(struct buf *out, const json_t *status, const json_t *node,
                   double median)
{
    const struct span waiting = json_span(node, "waiting"),
                      why = json_span(node, "why"),
                      version = json_span(node, "version");
    const json_t *store = json_object_get(node, "store"),
                 *gpus = json_object_get(node, "gpus");
    const char *sep = "";

    if (json_num(node, "since", 0) > 0 &&
        (is_text(node, "state", "lost") || is_text(node, "state", "left") ||
         is_text(node, "state", "spare") || is_text(node, "state", "joining"))) {
        put_str(out, "since ");
        put_duration(out, age_us(status, json_num(node, "since", 0)));
        sep = ", ";
    }
    if (json_is_true(json_object_get(node, "coordinator"))) {
        (void)buf_printf(out, "%scoordinator", sep);
        sep = ", ";
    }
    if (json_array_size(gpus)) {
        put_str(out, sep);
        put_gpus(out, gpus);
        sep = ", ";
    }
    if (store) {
        put_str(out, sep);
        put_count(out, (int64_t)json_count(store, "requests_per_second"), "request/s",
                  "requests/s");
        sep = ", ";
    }
    if (why.n || waiting.n) {
        put_str(out, sep);
        put_plain(out, why.n ? why : waiting);
        sep = ", ";
    }
    if (version.n && !span_eq(version, json_span(status, "version"))) {
        (void)buf_printf(out, "%smuster ", sep);
        put_plain(out, version);
        sep = ", ";
    }
    if (status_differs(node, median))
        (void)buf_printf(out, "%s<- the others use about %.0f %% CPU", sep,
                         median * json_num(node, "ranks", 1));
}

/* ---- the table ---- */

enum column { NODE, RANKS, STATE, WORKERS, CPU, MEMORY, COLUMNS };

static const char *const titles[COLUMNS] = { "node",    "ranks", "state",
                                             "workers", "CPU",   "memory" };

static void put_cell(struct buf *out, const json_t *node, enum column c)
{
    switch (c) {
    case NODE:
        put_plain_cut(out, json_span(node, "name"), 30);
        break;
    case RANKS:
        status_ranks(out, node);
        break;
    case STATE:
        put_plain_cut(out, json_span(node, "state"), 12);
        break;
    case WORKERS:
        if (json_object_get(node, "alive"))
            put_int(out, whole(node, "alive", 0));
        break;
    case CPU:
        if (json_object_get(node, "cpu"))
            (void)buf_printf(out, "%.0f %%", json_num(node, "cpu", 0));
        break;
    case MEMORY:
        if (json_object_get(node, "memory"))
            put_bytes(out, json_count(node, "memory"));
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

static size_t cell_width(const json_t *node, enum column c)
{
    struct buf b;

    buf_init(&b, SIZE_MAX);
    put_cell(&b, node, c);
    const size_t n = plain_width(buf_span(&b));
    buf_fini(&b);
    return n;
}

/* In a large job only nodes that stand out are listed. */
static bool is_listed(const json_t *node, size_t count, double median)
{
    return count <= LISTED_MAX || !is_text(node, "state", "running") ||
           json_object_get(node, "store") || json_object_get(node, "self") ||
           status_differs(node, median);
}

static const char *color_of(const json_t *node)
{
    if (is_text(node, "state", "lost"))
        return "\033[31m";
    return is_text(node, "state", "running") || is_text(node, "state", "ended")
               ? NULL
               : "\033[33m";
}

static void put_row(struct buf *out, const json_t *status, const json_t *node,
                    double median, const size_t *widths,
                    const struct status_style *style)
{
    const char *color = style->color ? color_of(node) : NULL;
    size_t used = 2;
    struct buf remark;

    put_str(out, "  ");
    if (color)
        put_str(out, color);
    buf_init(&remark, SIZE_MAX);
    status_remark(&remark, status, node, median);
    for (enum column c = NODE; c < COLUMNS; c++) {
        put_cell(out, node, c);
        if (c + 1 < COLUMNS || buf_len(&remark))
            pad(out, widths[c] - cell_width(node, c) + 2);
        used += widths[c] + 2;
    }
    if (color)
        put_str(out, "\033[0m");
    if (buf_len(&remark) && style->columns > used + 20) {
        put_plain_cut(out, buf_span(&remark), style->columns - used);
    } else if (buf_len(&remark)) { /* Too narrow: it gets a line of its own. */
        put_str(out, "\n      ");
        put_plain_cut(out, buf_span(&remark),
                      style->columns > 20 ? style->columns - 6 : 60);
    }
    buf_fini(&remark);
    put_str(out, "\n");
}

static void put_workers(struct buf *out, const json_t *node)
{
    const json_t *workers = json_object_get(node, "workers"), *w;
    size_t i;

    json_array_foreach(workers, i, w)
    {
        (void)buf_printf(out, "      rank %-5lld pid %-8lld ",
                         (long long)whole(w, "rank", -1),
                         (long long)whole(w, "pid", 0));
        put_plain_cut(out, json_span(w, "state"), 12);
        if (json_object_get(w, "code"))
            (void)buf_printf(out, " (%lld)", (long long)whole(w, "code", 0));
        if (json_object_get(w, "cpu"))
            (void)buf_printf(out, "  %.0f %%  ", json_num(w, "cpu", 0));
        if (json_object_get(w, "memory"))
            put_bytes(out, json_count(w, "memory"));
        put_str(out, "\n");
    }
}

static void put_nodes(struct buf *out, const json_t *status,
                      const struct status_style *style)
{
    const json_t *nodes = json_object_get(status, "nodes"), *node;
    const size_t count = json_array_size(nodes);
    const double median = status_median(status);
    size_t widths[COLUMNS], i, folded = 0;

    for (enum column c = NODE; c < COLUMNS; c++)
        widths[c] = strlen(titles[c]);
    json_array_foreach(nodes, i, node)
    {
        if (!is_listed(node, count, median)) {
            folded++;
            continue;
        }
        for (enum column c = NODE; c < COLUMNS; c++)
            widths[c] = MAX_OF(widths[c], cell_width(node, c));
    }
    if (count == 0)
        return;
    put_str(out, "  ");
    for (enum column c = NODE; c < COLUMNS; c++) {
        put_str(out, titles[c]);
        if (c + 1 < COLUMNS)
            pad(out, widths[c] - strlen(titles[c]) + 2);
    }
    put_str(out, "\n");
    json_array_foreach(nodes, i, node)
    {
        if (!is_listed(node, count, median))
            continue;
        put_row(out, status, node, median, widths, style);
        if (style->workers)
            put_workers(out, node);
    }
    if (folded) {
        put_str(out, "  and ");
        put_count(out, (int64_t)folded, "node", "nodes");
        put_str(out, " running as they should (--json lists them)\n");
    }
}

static void put_verdict(struct buf *out, const json_t *verdict,
                        const struct status_style *style)
{
    if (!json_is_object(verdict))
        return;
    put_str(out, style->color ? "  \033[31mended:\033[0m " : "  ended: ");
    status_cause(out, verdict);
    put_str(out, "\n");
}

/* The entry that says best why a round ended: the verdict, its restart, a failure in
 * it, the node that was lost; else its end itself. */
static const json_t *cause_of_round(const json_t *history, const json_t *ended)
{
    static const char *const kinds[] = { "VERDICT", "RESTART", "FAILED", "LOST" };
    const int64_t round = whole(ended, "round", -1);
    const json_t *e;
    size_t i;

    for (size_t k = 0; k < ARRAY_LEN(kinds); k++)
        json_array_foreach(history, i, e) if (is_text(e, "kind", kinds[k]) &&
                                              whole(e, "round", -1) == round) return e;
    return ended;
}

static void put_rounds(struct buf *out, const json_t *status)
{
    const json_t *history = json_object_get(status, "history"), *e;
    size_t i, shown = 0, total = 0;

    json_array_foreach(history, i, e) total += is_text(e, "kind", "ENDED");
    json_array_foreach(history, i, e)
    {
        if (!is_text(e, "kind", "ENDED"))
            continue;
        if (++shown + 5 <= total)
            continue; /* Only the last few rounds are shown. */
        (void)buf_printf(out, "  round %lld ended ", (long long)whole(e, "round", 0));
        put_duration(out, age_us(status, json_num(e, "at", 0)));
        put_str(out, " ago: ");
        status_cause(out, cause_of_round(history, e));
        put_str(out, "\n");
    }
}

/* Those that the shared state tells of, and that have not told of themselves. */
static void put_spares(struct buf *out, const json_t *spares)
{
    const json_t *name;
    size_t i;

    if (json_array_size(spares) == 0)
        return;
    put_str(out, "  waiting as ");
    put_str(out, json_array_size(spares) == 1 ? "a spare: " : "spares: ");
    json_array_foreach(spares, i, name)
    {
        put_str(out, i ? ", " : "");
        if (json_is_string(name))
            put_plain(out, span_of(json_string_value(name), json_string_length(name)));
    }
    put_str(out, "\n");
}

void status_text(struct buf *out, const json_t *status, const struct status_style *s)
{
    const json_t *job = json_object_get(status, "job");
    const json_t *store = json_object_get(status, "store");
    const int64_t torch = whole(job, "torch_nodes", 0);

    status_headline(out, status, SIZE_MAX);
    put_last_restart(out, status);
    put_str(out, "\n");
    put_nodes(out, status, s);
    put_spares(out, json_object_get(job, "spares"));
    if (torch > 0) {
        put_str(out, "  and ");
        put_count(out, torch, "node", "nodes");
        put_str(out, " of torchrun, which cannot be asked\n");
    }
    if (json_is_object(store)) {
        put_str(out, "  store: ");
        put_count(out, whole(store, "connections", 0), "connection", "connections");
        put_str(out, ", ");
        put_count(out, whole(store, "keys", 0), "key", "keys");
        put_str(out, ", ");
        put_grouped(out, json_count(store, "requests"));
        put_str(out, " requests");
        if (json_count(store, "requests_per_second")) {
            put_str(out, " (");
            put_grouped(out, json_count(store, "requests_per_second"));
            put_str(out, "/s)");
        }
        put_str(out, "\n");
    }
    put_rounds(out, status);
    put_verdict(out, json_object_get(status, "verdict"), s);
    if (json_object_get(status, "alone")) {
        put_str(out, "  about this node alone: ");
        put_plain(out, json_span(status, "alone"));
        put_str(out, "\n");
    }
}
