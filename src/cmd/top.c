/* top.c - `muster top`: shows the jobs on this machine, live on a terminal, with
 * ncurses.
 *
 * It asks once a second what `muster status` asks; keys choose what is shown of it.
 * From top to bottom: totals and the clock, what CPU and memory did in the last minute,
 * the table, what the chosen rank wrote last if there is room, and the keys. */
#include <errno.h>
#include <fcntl.h>
#include <langinfo.h>
#include <locale.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "cmd/ask.h"
#include "cmd/cmd.h"
#include "cmd/curses_dl.h"
#include "status/core/put.h"
#include "status/core/status_text.h"

#define PROG         "muster top"
#define REFRESH_MS   1000
#define ROWS_MAX     20000u
#define TEXT_MAX     (1u << 20)
#define MINUTE       60u  /* samples, one a second */
#define HISTORIES    512u /* nodes; larger jobs show no history of a node */
#define CAUSES_SHOWN 3u   /* restarts of a job */
#define REMARK_LEAST 24u  /* columns; in fewer a remark gets a line of its own */
#define PANEL_LEAST  4u   /* lines */

#define RED    NCURSES_BITS(1U, 0) /* COLOR_PAIR(1) is a function without macros. */
#define YELLOW NCURSES_BITS(2U, 0)
#define GREEN  NCURSES_BITS(3U, 0)

static const char keys_help[] =
    "  up, down, page  choose a line           l  all last lines of a rank\n"
    "  enter, space    open or close a node    k  stacks (`muster stacks`)\n"
    "  a               open or close all       /  filter: nodes, states, ranks\n"
    "  n r c m t       sort by node, rank,     ?  this help\n"
    "                  CPU, memory, state      q  leave, or back\n"
    "\n"
    "The screen needs 60 columns; from 80 on it shows a minute of history for CPU and\n"
    "memory, from 140 on bars. Full is 100 % of a CPU for each rank, and the memory "
    "of\n"
    "the node that uses most. Colours are used if the terminal has them and NO_COLOR\n"
    "is not set; they repeat what the words say.\n";

static const char help[] =
    "usage: muster top [JOB | HOST:PORT[/JOB]] [--token-file FILE]\n"
    "\n"
    "Shows the jobs on this machine, live. JOB is a run id (--rdzv-id) or the process\n"
    "number of an agent; without it all jobs of yours are shown. HOST:PORT asks the\n"
    "store of a job on other machines; if the job has a secret, --token-file or\n"
    "MUSTER_TOKEN gives it. Keys (? shows more):\n"
    "\n"
    "  up, down, page  choose a line           l  all last lines of a rank\n"
    "  enter, space    open or close a node    k  stacks (`muster stacks`)\n"
    "  n r c m t       sort                    /  filter      q  leave, or back\n";

enum kind { ROW_JOB, ROW_CAUSE, ROW_NODE, ROW_REMARK, ROW_GPU, ROW_WORKER };

struct row {
    enum kind kind;
    const struct job_status *status; /* borrowed from the answers, as is the next: */
    const struct job_node *node;     /* NULL: of a job */
    size_t of;                       /* which worker, GPU or entry of the history */
    double median;
};

/* What something used in each second of the last minute, the newest last. */
struct history {
    char key[160];
    float cpu[MINUTE], memory[MINUTE];
};

struct top {
    struct ask_args ask; /* first; without a job: all of them */
    struct answers all;
    struct muster_error why; /* why the last question failed; code 0: it did not */
    struct row *rows;        /* owned */
    size_t count, at, first; /* the chosen line, and the first one shown */
    char sort;
    bool open_all;
    json_t *open;    /* owned: names of nodes that are open */
    struct buf text; /* shown in place of the table, unless it is empty */
    char title[128];
    size_t text_first;
    struct buf tail; /* what the chosen rank wrote last */
    struct history *histories, total;
    size_t history_count;
    double most_memory; /* of a node, in the last minute */
    time_t second;      /* of the newest samples */
    size_t nodes, ranks;
    char filter[64];
    bool filtering; /* it is being typed */
    bool colors, utf8, over;
    WINDOW *w;
};

/* --- history ---------------------------------------------------------------------- */

static void node_key(const struct job_status *j, const struct job_node *n,
                     char out[160])
{
    snprintf(out, 160, "%.*s/%u", (int)MIN_OF(j->run_id.n, (size_t)120),
             (const char *)j->run_id.p, n->number);
}

static struct history *history_find(struct top *t, const char *key)
{
    for (size_t i = 0; i < t->history_count; i++)
        if (strcmp(t->histories[i].key, key) == 0)
            return &t->histories[i];
    return NULL;
}

static void history_shift(struct history *h, size_t by)
{
    by = MIN_OF(by, (size_t)MINUTE);
    memmove(h->cpu, h->cpu + by, (MINUTE - by) * sizeof *h->cpu);
    memmove(h->memory, h->memory + by, (MINUTE - by) * sizeof *h->memory);
    memset(h->cpu + MINUTE - by, 0, by * sizeof *h->cpu);
    memset(h->memory + MINUTE - by, 0, by * sizeof *h->memory);
}

static void history_sample(struct top *t, const struct job_status *j,
                           const struct job_node *n)
{
    const float cpu = (float)n->cpu / 10, memory = (float)n->memory;
    char key[160];

    t->total.cpu[MINUTE - 1] += cpu;
    t->total.memory[MINUTE - 1] += memory;
    t->nodes++;
    t->ranks += (size_t)n->ranks;
    node_key(j, n, key);
    struct history *h = history_find(t, key);
    if (!h && t->history_count < HISTORIES) {
        h = &t->histories[t->history_count++];
        *h = (struct history){ 0 };
        memcpy(h->key, key, sizeof key);
    }
    if (h) {
        h->cpu[MINUTE - 1] = cpu;
        h->memory[MINUTE - 1] = memory;
    }
}

static void history_update(struct top *t)
{
    const time_t now = time(NULL);
    const size_t passed = now > t->second && t->second ? (size_t)(now - t->second) : 0;

    t->second = now;
    for (size_t i = 0; i < t->history_count; i++)
        history_shift(&t->histories[i], passed);
    history_shift(&t->total, passed);
    t->total.cpu[MINUTE - 1] = t->total.memory[MINUTE - 1] = 0;
    t->nodes = t->ranks = 0;
    for (size_t i = 0; i < t->all.count; i++) {
        const struct job_status *j = answers_shown(&t->all, i);

        for (size_t k = 0; j && k < j->count; k++)
            history_sample(t, j, &j->nodes[k]);
    }
    t->most_memory = 1;
    for (size_t i = 0; i < t->history_count; i++)
        for (size_t k = 0; k < MINUTE; k++)
            t->most_memory = MAX_OF(t->most_memory, (double)t->histories[i].memory[k]);
}

/* --- rows ------------------------------------------------------------------------- */

static bool is_open(const struct top *t, const struct row *r)
{
    char key[160];

    node_key(r->status, r->node, key);
    return (json_object_get(t->open, key) != NULL) != t->open_all;
}

static void add_row(struct top *t, struct row r)
{
    if (t->count < ROWS_MAX)
        t->rows[t->count++] = r;
}

static bool has_text(const struct top *t, struct span text)
{
    char line[300];

    (void)snprintf(line, sizeof line, "%.*s", (int)MIN_OF(text.n, sizeof line - 1),
                   (const char *)text.p);
    return strcasestr(line, t->filter) != NULL;
}

static bool worker_passes(const struct top *t, const struct job_node *n, size_t worker)
{
    char rank[32];

    (void)snprintf(rank, sizeof rank, "rank %lld", (long long)job_rank(n, worker));
    return strcasestr(rank, t->filter) ||
           strcasestr(worker_state_word(job_worker_state(n, worker)), t->filter);
}

static bool node_passes(const struct top *t, const struct job_status *j,
                        const struct job_node *n)
{
    if (!t->filter[0] || has_text(t, n->host) ||
        strcasestr(node_state_word(n->state), t->filter))
        return true;
    for (size_t i = 0; i < job_workers_listed(j, n); i++)
        if (worker_passes(t, n, i))
            return true;
    return false;
}

struct sorting {
    const struct job_node *node;
    char by;
};

/* What nodes are sorted by; the largest comes first, but for ranks. */
static double sort_value(const struct sorting *s)
{
    const double none = 1e18; /* what is not known */

    if (s->by == 'c' || s->by == 'm')
        return -(!s->node->reported ? none
                 : s->by == 'c'     ? (double)s->node->cpu
                                    : (double)s->node->memory);
    return s->node->first_rank < 0 ? none : (double)s->node->first_rank;
}

static int compare_nodes(const void *a, const void *b)
{
    const struct sorting *x = a, *y = b;
    const uint32_t m = x->node->number, n = y->node->number;
    int c;

    if (x->by == 'n') {
        c = span_cmp(x->node->host, y->node->host);
    } else if (x->by == 't') {
        c = strcmp(node_state_word(x->node->state), node_state_word(y->node->state));
    } else {
        const double v = sort_value(x), w = sort_value(y);

        c = (v > w) - (v < w);
    }
    return c ? c : (m > n) - (m < n);
}

static size_t columns_used(const struct top *t);

/* Without room for it beside the node, a remark gets a line of its own. */
static bool remark_needs_line(const struct top *t, const struct row *r)
{
    struct buf b;

    if ((size_t)getmaxx(t->w) >= columns_used(t) + REMARK_LEAST)
        return false;
    buf_init(&b, SIZE_MAX);
    status_remark(&b, r->status, r->node, r->median);
    const bool some = buf_len(&b) > 0;
    buf_fini(&b);
    return some;
}

/* A node, with its remark, devices and ranks below it. */
static void add_node(struct top *t, struct row r)
{
    r.kind = ROW_NODE;
    add_row(t, r);
    if (remark_needs_line(t, &r)) {
        r.kind = ROW_REMARK;
        add_row(t, r);
    }
    if (!is_open(t, &r))
        return;
    r.kind = ROW_GPU;
    for (r.of = 0; r.of < r.node->gpu_count; r.of++)
        add_row(t, r);
    r.kind = ROW_WORKER;
    for (r.of = 0; r.of < job_workers_listed(r.status, r.node); r.of++)
        if (!t->filter[0] || worker_passes(t, r.node, r.of))
            add_row(t, r);
}

/* The newest restarts of a job, with their causes. */
static void add_causes(struct top *t, struct row r)
{
    size_t shown = 0;

    r.kind = ROW_CAUSE;
    for (r.of = r.status->entry_count; r.of-- > 0 && shown < CAUSES_SHOWN;)
        if (job_entry(r.status, r.of).kind == RECORD_RESTART) {
            add_row(t, r);
            shown++;
        }
}

static void add_job(struct top *t, const struct job_status *j)
{
    struct sorting *order = mem_calloc(j->count + 1, sizeof *order);
    struct row r = { ROW_JOB, j, NULL, 0, status_median(j) };

    add_row(t, r);
    add_causes(t, r);
    for (size_t i = 0; order && i < j->count; i++)
        order[i] = (struct sorting){ &j->nodes[i], t->sort };
    if (order)
        qsort(order, j->count, sizeof *order, compare_nodes);
    for (size_t i = 0; order && i < j->count; i++) {
        r.node = order[i].node;
        if (node_passes(t, j, r.node))
            add_node(t, r);
    }
    mem_free(order);
}

static void build_rows(struct top *t)
{
    t->count = 0;
    for (size_t i = 0; i < t->all.count; i++) {
        const struct job_status *j = answers_shown(&t->all, i);

        if (j)
            add_job(t, j);
    }
    if (t->at >= t->count)
        t->at = t->count ? t->count - 1 : 0;
}

static void refresh_answers(struct top *t)
{
    struct answers all;
    struct muster_error why = { 0 };

    if (answers_get(&all, t->ask.job, t->ask.token_file, &why) == 0) {
        answers_fini(&t->all);
        t->all = all;
        t->why.code = 0;
        for (size_t i = 0; i < all.count; i++)
            if (!all.list[i].told)
                t->why = all.list[i].error;
    } else {
        t->why = why; /* What was last known stays on the screen. */
    }
    history_update(t);
    build_rows(t);
}

/* --- drawing ---------------------------------------------------------------------- */

static void attribute(struct top *t, attr_t a, bool on)
{
    if (on)
        (void)wattr_on(t->w, a, NULL);
    else
        (void)wattr_off(t->w, a, NULL);
}

/* Writes a line, cut at the right edge. */
static void draw_line(struct top *t, int y, struct buf *b, attr_t a)
{
    const int columns = getmaxx(t->w);
    struct span text = buf_span(b);
    struct buf cut;

    while (text.n && text.p[text.n - 1] == ' ')
        text.n--;
    buf_init(&cut, SIZE_MAX);
    put_plain_cut(&cut, text, columns > 1 ? (size_t)columns - 1 : 1);
    (void)wmove(t->w, y, 0);
    attribute(t, a, true);
    (void)waddnstr(t->w, (const char *)buf_data(&cut), (int)buf_len(&cut));
    attribute(t, a, false);
    (void)wclrtoeol(t->w);
    buf_fini(&cut);
    buf_clear(b);
}

/* Appends the field, padded or cut to a width, and clears it. */
static void put_field(struct buf *out, struct buf *field, size_t width, bool right)
{
    const size_t n = plain_width(buf_span(field));

    for (size_t i = n; right && i < width; i++)
        put_str(out, " ");
    put_plain_cut(out, buf_span(field), width);
    for (size_t i = n; !right && i < width; i++)
        put_str(out, " ");
    put_str(out, "  ");
    buf_clear(field);
}

/* How wide the parts of the table are on a screen of this width. */
struct widths {
    size_t name, graph, bar; /* 0: no room for it */
};

static struct widths widths_of(const struct top *t)
{
    const int columns = getmaxx(t->w);

    if (columns >= 140)
        return (struct widths){ 24, 20, 10 };
    if (columns >= 110)
        return (struct widths){ 24, 20, 0 };
    return (struct widths){ 14, columns >= 80 ? 8 : 0, 0 };
}

static size_t graph_columns(struct widths w)
{
    return (w.graph ? w.graph + 1 : 0) + (w.bar ? w.bar + 1 : 0);
}

static size_t columns_used(const struct top *t)
{
    const struct widths w = widths_of(t);

    return 2 + w.name + 2 + 9 + 2 + 9 + 2 + 7 + 2 + 9 + 2 + 2 * graph_columns(w);
}

/* The minute in so many columns, each the most of its seconds. */
static void put_graph(const struct top *t, struct buf *b, const float *minute,
                      double full, size_t width)
{
    static const char *const utf8[] = { " ",      "\u2581", "\u2582",
                                        "\u2583", "\u2584", "\u2585",
                                        "\u2586", "\u2587", "\u2588" };
    static const char *const ascii[] = { " ", ".", ".", ":", "-", "=", "+", "*", "#" };

    for (size_t i = 0; i < width; i++) {
        double most = 0;

        for (size_t k = i * MINUTE / width; k < (i + 1) * MINUTE / width; k++)
            most = MAX_OF(most, (double)minute[k]);
        const double part = full > 0 ? most / full : 0;
        const size_t level = part >= 1     ? 8
                             : part > 0.01 ? 1 + (size_t)(part * 7.99)
                                           : 0;
        put_str(b, t->utf8 ? utf8[level] : ascii[level]);
    }
}

static void put_bar(const struct top *t, struct buf *b, double now, double full,
                    size_t width)
{
    const double part = full > 0 ? MIN_OF(now / full, 1.0) : 0;

    for (size_t i = 0; i < width; i++)
        put_str(b, part * (double)width > (double)i + 0.5 ? t->utf8 ? "\u2588" : "|"
                   : t->utf8                              ? "\u2591"
                                                          : ".");
}

/* A figure, its bar and its minute. */
static void put_use(const struct top *t, struct buf *b, struct buf *f, size_t width,
                    const float *minute, double full)
{
    const struct widths w = widths_of(t);

    put_field(b, f, width, true);
    if (!minute) {
        for (size_t i = 0; i < graph_columns(w); i++)
            put_str(b, " ");
        return;
    }
    if (w.bar) {
        put_bar(t, b, (double)minute[MINUTE - 1], full, w.bar);
        put_str(b, " ");
    }
    if (w.graph) {
        put_graph(t, b, minute, full, w.graph);
        put_str(b, " ");
    }
}

/* What a node or a rank uses of the CPU, in thousandths, and of the memory. */
static void put_cpu(struct buf *f, uint64_t thousandths)
{
    (void)buf_printf(f, "%.0f %%", (double)thousandths / 10);
}

/* States that are good or bad news have a colour. */
static attr_t color_of(const struct top *t, const char *state)
{
    static const struct {
        const char *state;
        attr_t color;
    } rows[] = { { "lost", RED },
                 { "failed", RED },
                 { "running", GREEN },
                 { "ended", A_NORMAL },
                 { "succeeded", A_NORMAL } };

    for (size_t i = 0; t->colors && i < ARRAY_LEN(rows); i++)
        if (strcmp(state, rows[i].state) == 0)
            return rows[i].color;
    return t->colors ? YELLOW : A_NORMAL;
}

static void draw_node(struct top *t, int y, const struct row *r, attr_t a,
                      struct buf *b)
{
    char key[160];
    struct buf f;

    node_key(r->status, r->node, key);
    const struct history *h = history_find(t, key);
    buf_init(&f, SIZE_MAX);
    put_str(b, job_workers_listed(r->status, r->node) == 0 ? "  "
               : is_open(t, r)                             ? "- "
                                                           : "+ ");
    put_plain(&f, r->node->host);
    put_field(b, &f, widths_of(t).name, false);
    status_ranks(&f, r->node);
    put_field(b, &f, 9, false);
    put_str(&f, node_state_word(r->node->state));
    put_field(b, &f, 9, false);
    if (r->node->reported)
        put_cpu(&f, r->node->cpu);
    put_use(t, b, &f, 7, h ? h->cpu : NULL, 100 * (double)r->node->ranks);
    if (r->node->reported)
        put_bytes(&f, r->node->memory);
    put_use(t, b, &f, 9, h ? h->memory : NULL, t->most_memory);
    if ((size_t)getmaxx(t->w) >= columns_used(t) + REMARK_LEAST)
        status_remark(&f, r->status, r->node, r->median);
    put_plain(b, buf_span(&f));
    buf_fini(&f);
    draw_line(t, y, b, a | color_of(t, node_state_word(r->node->state)));
}

static void draw_gpu(struct top *t, int y, const struct row *r, attr_t a, struct buf *b)
{
    const struct gpu_status *g = &r->node->gpus[r->of];

    (void)buf_printf(b, "    GPU %zu   %u %%   ", r->of, g->busy);
    put_bytes(b, g->memory);
    put_str(b, " of ");
    put_bytes(b, g->memory_total);
    (void)buf_printf(b, "   %u C   ", g->celsius);
    put_plain(b, g->name);
    draw_line(t, y, b, a);
}

static void draw_worker(struct top *t, int y, const struct row *r, attr_t a,
                        struct buf *b)
{
    static const struct worker_status unknown;
    const struct job_node *n = r->node;
    const struct worker_status *w =
        r->of < n->worker_count ? &n->workers[r->of] : &unknown;
    const enum worker_state state = job_worker_state(n, r->of);
    struct buf f;

    buf_init(&f, SIZE_MAX);
    (void)buf_printf(&f, "    rank %lld", (long long)job_rank(n, r->of));
    put_field(b, &f, widths_of(t).name + 2, false);
    put_int(&f, w->pid);
    put_field(b, &f, 9, false);
    put_str(&f, worker_state_word(state));
    put_field(b, &f, 9, false);
    if (n->reported)
        put_cpu(&f, w->cpu);
    put_use(t, b, &f, 7, NULL, 0);
    if (n->reported)
        put_bytes(&f, w->memory);
    put_use(t, b, &f, 9, NULL, 0);
    if (job_worker_has_code(state))
        (void)buf_printf(b, "exit code %d", w->code);
    buf_fini(&f);
    draw_line(t, y, b, a | color_of(t, worker_state_word(state)));
}

/* Where there is no room for all of it, the host goes: it is in the rows below. */
static void draw_cause(struct top *t, int y, const struct row *r, attr_t a,
                       struct buf *b)
{
    struct record_entry e = job_entry(r->status, r->of);

    put_str(b, "  restart ");
    status_restart(b, r->status, &e);
    if (buf_len(b) > (size_t)getmaxx(t->w)) {
        e.host = span_of(NULL, 0);
        buf_clear(b);
        put_str(b, "  restart ");
        status_restart(b, r->status, &e);
    }
    draw_line(t, y, b, a | (t->colors ? YELLOW : A_NORMAL));
}

static void draw_row(struct top *t, int y, size_t i)
{
    const struct row *r = &t->rows[i];
    const attr_t a = i == t->at ? A_REVERSE : A_NORMAL;
    struct buf b;

    buf_init(&b, SIZE_MAX);
    switch (r->kind) {
    case ROW_JOB:
        /* A long name leaves room for the counts behind it. */
        status_headline(&b, r->status, (size_t)MAX_OF(getmaxx(t->w) - 60, 12));
        draw_line(t, y, &b, a | A_BOLD);
        break;
    case ROW_CAUSE:
        draw_cause(t, y, r, a, &b);
        break;
    case ROW_NODE:
        draw_node(t, y, r, a, &b);
        break;
    case ROW_REMARK:
        put_str(&b, "    ");
        status_remark(&b, r->status, r->node, r->median);
        draw_line(t, y, &b, a | A_DIM);
        break;
    case ROW_GPU:
        draw_gpu(t, y, r, a, &b);
        break;
    case ROW_WORKER:
        draw_worker(t, y, r, a, &b);
        break;
    }
    buf_fini(&b);
}

/* What all jobs use, with the clock; then the titles of the table. */
static void draw_head(struct top *t)
{
    const struct widths w = widths_of(t);
    const double full = 100.0 * (double)MAX_OF(t->ranks, (size_t)1);
    struct buf b, f;
    char clock[16];
    struct tm tm;

    buf_init(&b, SIZE_MAX);
    buf_init(&f, SIZE_MAX);
    (void)strftime(clock, sizeof clock, "%H:%M:%S", localtime_r(&t->second, &tm));
    (void)buf_printf(&b, "muster top %s  %zu node%s, %zu rank%s  CPU %.0f %%  ", clock,
                     t->nodes, t->nodes == 1 ? "" : "s", t->ranks,
                     t->ranks == 1 ? "" : "s", (double)t->total.cpu[MINUTE - 1]);
    put_bytes(&b, (uint64_t)t->total.memory[MINUTE - 1]);
    if (w.graph) {
        put_str(&b, "  ");
        put_graph(t, &b, t->total.cpu, full, w.graph);
    }
    draw_line(t, 0, &b, A_BOLD);
    put_str(&b, "  ");
    put_str(&f, "node");
    put_field(&b, &f, w.name, false);
    put_str(&f, "ranks/pid");
    put_field(&b, &f, 9, false);
    put_str(&f, "state");
    put_field(&b, &f, 9, false);
    put_str(&f, "CPU");
    put_use(t, &b, &f, 7, NULL, 0);
    put_str(&f, "memory");
    put_field(&b, &f, 9, true);
    draw_line(t, 1, &b, A_UNDERLINE);
    buf_fini(&f);
    buf_fini(&b);
}

static void draw_foot(struct top *t, const char *keys)
{
    struct buf b;

    buf_init(&b, SIZE_MAX);
    if (t->filtering || (t->filter[0] && !t->why.code)) {
        put_str(&b, "/");
        put_plain(&b, span_str(t->filter));
        put_str(&b, t->filtering ? "_   enter: keep, escape: show all"
                                 : "   / changes the filter, escape shows all");
        draw_line(t, getmaxy(t->w) - 1, &b, A_BOLD);
    } else if (t->why.code) {
        put_plain(&b, span_of(t->why.text, strcspn(t->why.text, "\n")));
        draw_line(t, getmaxy(t->w) - 1, &b, t->colors ? RED : A_BOLD);
    } else {
        put_str(&b, keys);
        draw_line(t, getmaxy(t->w) - 1, &b, A_DIM);
    }
    buf_fini(&b);
}

static int64_t chosen_rank(const struct top *t);

/* The end of what the chosen rank wrote, in lines y to y + room - 1. */
static void draw_panel(struct top *t, int y, size_t room)
{
    struct span rest = buf_span(&t->tail);
    struct buf b;

    buf_init(&b, SIZE_MAX);
    (void)buf_printf(&b, "last lines of rank %lld ", (long long)chosen_rank(t));
    draw_line(t, y++, &b, A_UNDERLINE);
    while (rest.n && rest.p[rest.n - 1] == '\n')
        rest.n--;
    const uint8_t *from = rest.p + rest.n; /* Find where the last lines begin. */
    for (size_t lines = 0; from > rest.p && (from[-1] != '\n' || ++lines < room - 1);)
        from--;
    rest = span_of(from, rest.n - (size_t)(from - rest.p));
    for (size_t i = 1; i < room; i++) {
        put_plain(&b, span_take_line(&rest));
        draw_line(t, y++, &b, A_NORMAL);
    }
    buf_fini(&b);
}

static void draw_table(struct top *t)
{
    const int lines = getmaxy(t->w);
    const size_t all = lines > 3 ? (size_t)lines - 3 : 1;
    /* The table has what it needs, or at least half of the screen. */
    const size_t half = MAX_OF(all / 2, MIN_OF(all, t->count + 1));
    const bool panel = buf_len(&t->tail) && all - half >= PANEL_LEAST;
    const size_t room = panel ? half : all;

    if (t->at < t->first)
        t->first = t->at;
    if (t->at >= t->first + room)
        t->first = t->at - room + 1;
    draw_head(t);
    for (size_t i = 0; i < room; i++) {
        (void)wmove(t->w, (int)i + 2, 0);
        (void)wclrtoeol(t->w);
        if (t->first + i < t->count)
            draw_row(t, (int)i + 2, t->first + i);
    }
    if (panel)
        draw_panel(t, (int)room + 2, all - room);
    if (t->count == 0 && !t->why.code) {
        struct buf b;

        buf_init(&b, SIZE_MAX);
        put_str(&b, "no job of yours runs on this machine");
        draw_line(t, 2, &b, A_NORMAL);
        buf_fini(&b);
    }
    draw_foot(
        t, "q leave  enter open  l lines  k stacks  / filter  ? help  sort: n r c m t");
}

static size_t text_lines(const struct top *t)
{
    const struct span s = buf_span(&t->text);
    size_t n = 0;

    for (size_t i = 0; i < s.n; i++)
        n += s.p[i] == '\n';
    return n;
}

static void draw_text(struct top *t)
{
    struct span rest = buf_span(&t->text);
    const int lines = getmaxy(t->w);
    const size_t all = text_lines(t), room = lines > 2 ? (size_t)lines - 2 : 1;
    size_t number = 0;
    struct buf b;

    t->text_first = MIN_OF(t->text_first, all > room ? all - room : 0);
    buf_init(&b, SIZE_MAX);
    put_plain(&b, span_str(t->title));
    draw_line(t, 0, &b, A_UNDERLINE);
    for (int y = 1; y < lines - 1;) {
        const bool over = rest.n == 0;
        const struct span line = span_take_line(&rest);

        if (number++ >= t->text_first || over) {
            put_plain(&b, line);
            draw_line(t, y++, &b, A_NORMAL);
        }
    }
    buf_fini(&b);
    draw_foot(t, "q back  up, down, page: move");
}

static void top_draw(struct top *t)
{
    if (buf_len(&t->text))
        draw_text(t);
    else
        draw_table(t);
    (void)wmove(t->w, getmaxy(t->w) - 1, 0);
    (void)wrefresh(t->w);
}

/* --- lines and stacks ------------------------------------------------------------- */

static const struct row *chosen(const struct top *t)
{
    return t->at < t->count ? &t->rows[t->at] : NULL;
}

/* The rank of the chosen line; a node's first one, and the first of a job. */
static int64_t chosen_rank(const struct top *t)
{
    const struct row *r = chosen(t);

    if (!r)
        return -1;
    if (r->kind == ROW_WORKER)
        return job_rank(r->node, r->of);
    return r->node ? r->node->first_rank : 0;
}

static void set_text(struct top *t, const char *title, struct span text)
{
    buf_clear(&t->text);
    (void)buf_append(&t->text, text.p, MIN_OF(text.n, (size_t)TEXT_MAX));
    if (!text.n || text.p[text.n - 1] != '\n')
        put_str(&t->text, "\n");
    snprintf(t->title, sizeof t->title, "%s", title);
    t->text_first = SIZE_MAX / 2; /* show the end; draw_text() limits it */
}

/* The agent that answered for the job. Its pid is 0 if a store on another machine
 * answered. */
static struct local_name answered_by(const struct top *t, const struct row *r)
{
    for (size_t i = 0; i < t->all.count; i++)
        if (t->all.list[i].told && &t->all.list[i].told->status == r->status)
            return t->all.list[i].name;
    return (struct local_name){ 0 };
}

/* Asks for what a rank wrote last; without an answer the reason is the text. */
static void get_lines(const struct top *t, int64_t rank, struct buf *out)
{
    struct local_call call = { .name = answered_by(t, chosen(t)) };

    buf_clear(out);
    if (!call.name.pid) {
        put_str(out, "They can only be shown on a machine of the job.");
        return;
    }
    json_t *ask = json_pack("{s:s, s:I}", "ask", "lines", "rank", (json_int_t)rank);
    if (ask && local_socket_ask(ask, &call, 1, 2000, NULL) == 0 && call.answer)
        (void)buf_append(out, json_string_value(call.answer),
                         MIN_OF(json_string_length(call.answer), (size_t)TEXT_MAX));
    else
        put_str(out, call.error.text);
    local_calls_fini(&call, 1);
    json_decref(ask);
}

static void refresh_tail(struct top *t)
{
    const int64_t rank = chosen_rank(t);

    buf_clear(&t->tail);
    if (rank >= 0 && !buf_len(&t->text) && answered_by(t, chosen(t)).pid)
        get_lines(t, rank, &t->tail);
}

static void show_lines(struct top *t)
{
    const int64_t rank = chosen_rank(t);
    char title[64];
    struct buf lines;

    if (rank < 0)
        return;
    snprintf(title, sizeof title, "last lines of rank %lld", (long long)rank);
    buf_init(&lines, SIZE_MAX);
    get_lines(t, rank, &lines);
    set_text(t, title, buf_span(&lines));
    buf_fini(&lines);
}

/* `muster stacks` does the reading and the merging; its output is shown as it is. */
static void show_stacks(struct top *t)
{
    const struct row *r = chosen(t);
    const struct span id = r ? r->status->run_id : span_of(NULL, 0);
    char job[1400], rank[24];
    char *argv[] = {
        (char *)"muster", (char *)"stacks", job, NULL, NULL, NULL, NULL, NULL
    };
    int words = 3;
    struct buf out;
    int fds[2];

    if (!r || pipe2(fds, O_CLOEXEC) < 0)
        return;
    const bool far = t->ask.job && !answered_by(t, r).pid;
    snprintf(job, sizeof job, "%.*s%s%.*s", far ? (int)strcspn(t->ask.job, "/") : 0,
             far ? t->ask.job : "", far ? "/" : "", (int)MIN_OF(id.n, 256u),
             (const char *)id.p);
    if (r->kind == ROW_WORKER) {
        snprintf(rank, sizeof rank, "%lld", (long long)chosen_rank(t));
        argv[words++] = (char *)"--rank";
        argv[words++] = rank;
    }
    if (t->ask.token_file) {
        argv[words++] = (char *)"--token-file";
        argv[words++] = (char *)(uintptr_t)t->ask.token_file;
    }
    const pid_t pid = fork();
    if (pid == 0) {
        (void)dup2(fds[1], STDOUT_FILENO);
        (void)dup2(fds[1], STDERR_FILENO);
        execv("/proc/self/exe", argv);
        _exit(127);
    }
    (void)close(fds[1]);
    buf_init(&out, TEXT_MAX);
    for (uint8_t *room; pid > 0 && (room = buf_room(&out, 4096));) {
        const ssize_t n = read(fds[0], room, 4096);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        buf_commit(&out, (size_t)n);
    }
    (void)close(fds[0]);
    if (pid > 0)
        (void)waitpid(pid, NULL, 0);
    set_text(t, "stacks", buf_span(&out));
    t->text_first = 0;
    buf_fini(&out);
}

/* --- keys ------------------------------------------------------------------------- */

static void toggle_node(struct top *t)
{
    const struct row *r = chosen(t);
    char key[160];

    if (!r || !r->node)
        return;
    node_key(r->status, r->node, key);
    if (json_object_get(t->open, key))
        json_object_del(t->open, key);
    else
        json_object_set_new(t->open, key, json_true());
    while (t->rows[t->at].kind != ROW_NODE)
        t->at--; /* The chosen line may disappear, but that of its node stays. */
    build_rows(t);
}

/* A remark and a cause belong to the line above them. */
static bool can_choose(const struct row *r)
{
    return r->kind != ROW_REMARK && r->kind != ROW_CAUSE;
}

static void move_by(struct top *t, long by)
{
    const long last = (long)t->count - 1;
    long at = MAX_OF(0L, MIN_OF((long)t->at + by, last));

    if (buf_len(&t->text)) {
        const long first = (long)t->text_first + by;

        t->text_first = first > 0 ? (size_t)first : 0;
        return;
    }
    while (by > 0 && at < last && !can_choose(&t->rows[at]))
        at++;
    while (at > 0 && !can_choose(&t->rows[at]))
        at--;
    t->at = (size_t)at;
}

/* A key while the filter is being typed. */
static void on_filter_key(struct top *t, int key)
{
    const size_t n = strlen(t->filter);

    if (key == 27)
        t->filter[0] = '\0';
    else if ((key == KEY_BACKSPACE || key == 127 || key == 8) && n)
        t->filter[n - 1] = '\0';
    else if (key > ' ' - 1 && key < 127 && n + 1 < sizeof t->filter) {
        t->filter[n] = (char)key;
        t->filter[n + 1] = '\0';
    }
    t->filtering = key != 27 && key != '\n' && key != '\r' && key != KEY_ENTER;
    build_rows(t);
}

static void on_key(struct top *t, int key)
{
    const long page = getmaxy(t->w) > 4 ? getmaxy(t->w) - 3 : 1;

    if (t->filtering) {
        on_filter_key(t, key);
        return;
    }
    switch (key) {
    case 'q':
    case 27:
        if (buf_len(&t->text)) {
            buf_clear(&t->text);
        } else if (key == 27) {
            t->filter[0] = '\0';
            build_rows(t);
        } else {
            t->over = true;
        }
        break;
    case '/':
        t->filtering = true;
        break;
    case '?':
        set_text(t, "keys", span_str(keys_help));
        t->text_first = 0;
        break;
    case KEY_UP:
        move_by(t, -1);
        break;
    case KEY_DOWN:
    case 'j':
        move_by(t, 1);
        break;
    case KEY_PPAGE:
        move_by(t, -page);
        break;
    case KEY_NPAGE:
        move_by(t, page);
        break;
    case KEY_HOME:
        move_by(t, -(long)ROWS_MAX);
        break;
    case KEY_END:
        move_by(t, (long)ROWS_MAX);
        break;
    case '\n':
    case '\r':
    case KEY_ENTER:
    case ' ':
        toggle_node(t);
        break;
    case 'a':
        t->open_all = !t->open_all;
        json_object_clear(t->open);
        build_rows(t);
        break;
    case 'n':
    case 'r':
    case 'c':
    case 'm':
    case 't':
        t->sort = (char)key;
        build_rows(t);
        break;
    case 'l':
        show_lines(t);
        break;
    case 'k':
        show_stacks(t);
        break;
    default: /* KEY_RESIZE, too: the caller draws again. */
        break;
    }
}

/* --- run -------------------------------------------------------------------------- */

static int open_screen(struct top *t, struct muster_error *err)
{
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");

    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))
        return err_set(err, MUSTER_EINVAL,
                       "top needs a terminal; `muster status --watch` does not");
    if (curses_dl_load(err) != 0)
        return err->code;
    (void)unsetenv("COLUMNS"); /* It may be that of another terminal, or outdated. */
    (void)unsetenv("LINES");
    if (!newterm(NULL, stdout, stdin))
        return err_set(err, MUSTER_ENOTSUP,
                       "ncurses does not know this terminal (TERM=%s)",
                       term ? term : "");
    t->w = curses_screen();
    (void)cbreak();
    (void)noecho();
    (void)keypad(t->w, true);
    (void)curs_set(0);
    if (!(no && *no) && has_colors() && start_color() == OK) {
        (void)use_default_colors();
        (void)init_pair(1, COLOR_RED, -1);
        (void)init_pair(2, COLOR_YELLOW, -1);
        (void)init_pair(3, COLOR_GREEN, -1);
        t->colors = true;
    }
    return 0;
}

static void top_run(struct top *t)
{
    while (!t->over) {
        refresh_answers(t);
        refresh_tail(t);
        top_draw(t);
        wtimeout(t->w, REFRESH_MS);
        for (int key; !t->over && (key = wgetch(t->w)) != ERR;) {
            on_key(t, key);
            top_draw(t);
            wtimeout(t->w, 0); /* Take the keys that are there, then ask again. */
        }
    }
}

static int top_show(void *args, struct muster_error *err)
{
    struct top *t = args;
    int rc = 0;

    (void)setlocale(LC_CTYPE, "");
    t->utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    buf_init(&t->text, SIZE_MAX);
    buf_init(&t->tail, SIZE_MAX);
    t->rows = mem_calloc(ROWS_MAX, sizeof *t->rows);
    t->histories = mem_calloc(HISTORIES, sizeof *t->histories);
    t->open = json_object();
    if (!t->rows || !t->histories || !t->open)
        rc = err_nomem(err);
    if (rc == 0 && t->ask.job) { /* Report a missing job before the screen changes. */
        struct answers all;

        rc = answers_get(&all, t->ask.job, t->ask.token_file, err);
        if (rc == 0)
            answers_fini(&all);
    }
    if (rc == 0)
        rc = open_screen(t, err);
    if (rc == 0) {
        top_run(t);
        (void)endwin();
    }
    answers_fini(&t->all);
    json_decref(t->open);
    mem_free(t->rows);
    mem_free(t->histories);
    buf_fini(&t->text);
    buf_fini(&t->tail);
    return rc;
}

int cmd_top(int argc, char **argv)
{
    static const struct option options[] = {
        { "token-file", required_argument, NULL, 'T' },
        { "help", no_argument, NULL, 'h' },
        { NULL, 0, NULL, 0 },
    };
    static const struct ask_command command = { PROG, help, options, NULL, top_show };
    struct top t = { .sort = 'r' };

    return ask_main(&command, &t.ask, argc, argv);
}
