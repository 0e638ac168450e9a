/* top.c - `muster top`: shows the jobs on this machine, live on a terminal, with
 * ncurses.
 *
 * It asks once a second what `muster status` asks; keys choose what is shown of it. */
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
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
#define REMARK_LEAST 8u /* columns */

#define RED    NCURSES_BITS(1U, 0) /* COLOR_PAIR(1) is a function without macros. */
#define YELLOW NCURSES_BITS(2U, 0)

static const char help[] =
    "usage: muster top [JOB | HOST:PORT[/JOB]] [--token-file FILE]\n"
    "\n"
    "Shows the jobs on this machine, live. JOB is a run id (--rdzv-id) or the process\n"
    "number of an agent; without it all jobs of yours are shown. HOST:PORT asks the\n"
    "store of a job on other machines; if the job has a secret, --token-file or\n"
    "MUSTER_TOKEN gives it.\n"
    "\n"
    "  up, down, page  choose a line          l  last lines of a worker\n"
    "  enter, space    open or close a node   k  stacks (`muster stacks`)\n"
    "  a               open or close all      q  leave, or back\n"
    "  n r c m t       sort by node, rank, CPU, memory, state\n"
    "\n"
    "The screen needs 60 columns. Colours are used if the terminal has them and\n"
    "NO_COLOR is not set; they repeat what the words say.\n";

enum kind { ROW_JOB, ROW_NODE, ROW_WORKER };

struct row {
    enum kind kind;
    const json_t *status, *node, *worker; /* borrowed from the answers */
    double median;
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
    bool colors, over;
    WINDOW *w;
};

/* --- rows ------------------------------------------------------------------------- */

static void key_of(const struct row *r, char out[160])
{
    const struct span id = json_span(json_object_get(r->status, "job"), "run_id");

    snprintf(out, 160, "%.*s/%.0f", (int)MIN_OF(id.n, (size_t)120), (const char *)id.p,
             json_num(r->node, "node", 0));
}

static bool is_open(const struct top *t, const struct row *r)
{
    char key[160];

    key_of(r, key);
    return (json_object_get(t->open, key) != NULL) != t->open_all;
}

static void add_row(struct top *t, struct row r)
{
    if (t->count < ROWS_MAX)
        t->rows[t->count++] = r;
}

struct sorting {
    const json_t *node;
    char by;
};

static int compare(const void *a, const void *b)
{
    const struct sorting *x = a, *y = b;
    const char *key = x->by == 'c' ? "cpu" : x->by == 'm' ? "memory" : "first_rank";
    int c = 0;

    if (x->by == 'n' || x->by == 't') {
        key = x->by == 'n' ? "name" : "state";
        c = span_cmp(json_span(x->node, key), json_span(y->node, key));
    } else {
        const double v = json_num(x->node, key, 1e18), w = json_num(y->node, key, 1e18);

        c = (v > w) - (v < w);
        c = x->by == 'r' ? c : -c;
    }
    const double v = json_num(x->node, "node", 0), w = json_num(y->node, "node", 0);
    return c ? c : (v > w) - (v < w);
}

static void add_job(struct top *t, const json_t *status)
{
    const json_t *nodes = json_object_get(status, "nodes");
    const size_t n = json_array_size(nodes);
    struct sorting *order = mem_calloc(n + 1, sizeof *order);
    struct row r = { ROW_JOB, status, NULL, NULL, status_median(status) };

    add_row(t, r);
    for (size_t i = 0; order && i < n; i++)
        order[i] = (struct sorting){ json_array_get(nodes, i), t->sort };
    if (order)
        qsort(order, n, sizeof *order, compare);
    for (size_t i = 0; order && i < n; i++) {
        const json_t *workers = json_object_get(order[i].node, "workers"), *w;
        size_t k;

        r.kind = ROW_NODE;
        r.node = order[i].node;
        r.worker = NULL;
        add_row(t, r);
        if (!is_open(t, &r))
            continue;
        r.kind = ROW_WORKER;
        json_array_foreach(workers, k, w)
        {
            r.worker = w;
            add_row(t, r);
        }
    }
    mem_free(order);
}

static void build_rows(struct top *t)
{
    t->count = 0;
    for (size_t i = 0; i < t->all.count; i++)
        if (t->all.calls[i].answer && answers_is_first(&t->all, i))
            add_job(t, t->all.calls[i].answer);
    if (t->at >= t->count)
        t->at = t->count ? t->count - 1 : 0;
}

static void refresh_answers(struct top *t)
{
    struct answers all;
    struct muster_error why = { 0 };

    if (answers_get(&all, t->ask.job, t->ask.token_file, "status", &why) == 0) {
        answers_fini(&t->all);
        t->all = all;
        t->why.code = 0;
        for (size_t i = 0; i < all.count; i++)
            if (!all.calls[i].answer)
                t->why = all.calls[i].error;
    } else {
        t->why = why; /* What was last known stays on the screen. */
    }
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

static size_t name_width(const struct top *t)
{
    const int columns = getmaxx(t->w);

    return columns >= 100 ? 24 : columns >= 80 ? 18 : 14;
}

static void put_usage(struct buf *b, struct buf *f, const json_t *of)
{
    if (json_object_get(of, "cpu"))
        (void)buf_printf(f, "%.0f %%", json_num(of, "cpu", 0));
    put_field(b, f, 7, true);
    if (json_object_get(of, "memory"))
        put_bytes(f, json_count(of, "memory"));
    put_field(b, f, 9, true);
}

static attr_t color_of(const struct top *t, struct span state)
{
    if (!t->colors)
        return A_NORMAL;
    if (span_eq(state, span_str("lost")) || span_eq(state, span_str("failed")))
        return RED;
    if (span_eq(state, span_str("running")) || span_eq(state, span_str("succeeded")) ||
        span_eq(state, span_str("ended")))
        return A_NORMAL;
    return YELLOW;
}

static void draw_node(struct top *t, int y, const struct row *r, attr_t a,
                      struct buf *b)
{
    struct buf f;

    buf_init(&f, SIZE_MAX);
    put_str(b,
            json_object_get(r->node, "workers") ? is_open(t, r) ? "- " : "+ " : "  ");
    put_plain(&f, json_span(r->node, "name"));
    put_field(b, &f, name_width(t), false);
    status_ranks(&f, r->node);
    put_field(b, &f, 9, false);
    put_plain(&f, json_span(r->node, "state"));
    put_field(b, &f, 9, false);
    put_usage(b, &f, r->node);
    /* Without room for the remark, nothing of it could be read. */
    if ((size_t)getmaxx(t->w) > plain_width(buf_span(b)) + REMARK_LEAST)
        status_remark(&f, r->status, r->node, r->median);
    put_plain(b, buf_span(&f));
    buf_fini(&f);
    draw_line(t, y, b, a | color_of(t, json_span(r->node, "state")));
}

static void draw_worker(struct top *t, int y, const struct row *r, attr_t a,
                        struct buf *b)
{
    struct buf f;

    buf_init(&f, SIZE_MAX);
    (void)buf_printf(&f, "    rank %.0f", json_num(r->worker, "rank", -1));
    put_field(b, &f, name_width(t) + 2, false);
    (void)buf_printf(&f, "%.0f", json_num(r->worker, "pid", 0));
    put_field(b, &f, 9, false);
    put_plain(&f, json_span(r->worker, "state"));
    put_field(b, &f, 9, false);
    put_usage(b, &f, r->worker);
    if (json_object_get(r->worker, "code"))
        (void)buf_printf(b, "exit code %.0f", json_num(r->worker, "code", 0));
    buf_fini(&f);
    draw_line(t, y, b, a | color_of(t, json_span(r->worker, "state")));
}

static void draw_row(struct top *t, int y, size_t i)
{
    const struct row *r = &t->rows[i];
    const attr_t a = i == t->at ? A_REVERSE : A_NORMAL;
    struct buf b;

    buf_init(&b, SIZE_MAX);
    switch (r->kind) {
    case ROW_JOB:
        status_headline(&b, r->status);
        draw_line(t, y, &b, a | A_BOLD);
        break;
    case ROW_NODE:
        draw_node(t, y, r, a, &b);
        break;
    case ROW_WORKER:
        draw_worker(t, y, r, a, &b);
        break;
    }
    buf_fini(&b);
}

static void draw_head(struct top *t)
{
    struct buf b, f;

    buf_init(&b, SIZE_MAX);
    buf_init(&f, SIZE_MAX);
    put_str(&b, "  ");
    put_str(&f, "node");
    put_field(&b, &f, name_width(t), false);
    put_str(&f, "ranks/pid");
    put_field(&b, &f, 9, false);
    put_str(&f, "state");
    put_field(&b, &f, 9, false);
    put_str(&f, "CPU");
    put_field(&b, &f, 7, true);
    put_str(&f, "memory");
    put_field(&b, &f, 9, true);
    draw_line(t, 0, &b, A_UNDERLINE);
    buf_fini(&f);
    buf_fini(&b);
}

static void draw_foot(struct top *t, const char *keys)
{
    struct buf b;

    buf_init(&b, SIZE_MAX);
    if (t->why.code) {
        put_plain(&b, span_of(t->why.text, strcspn(t->why.text, "\n")));
        draw_line(t, getmaxy(t->w) - 1, &b, t->colors ? RED : A_BOLD);
    } else {
        put_str(&b, keys);
        draw_line(t, getmaxy(t->w) - 1, &b, A_DIM);
    }
    buf_fini(&b);
}

static void draw_table(struct top *t)
{
    const int lines = getmaxy(t->w);
    const size_t room = lines > 2 ? (size_t)lines - 2 : 1;

    if (t->at < t->first)
        t->first = t->at;
    if (t->at >= t->first + room)
        t->first = t->at - room + 1;
    draw_head(t);
    for (size_t i = 0; i < room; i++) {
        (void)wmove(t->w, (int)i + 1, 0);
        (void)wclrtoeol(t->w);
        if (t->first + i < t->count)
            draw_row(t, (int)i + 1, t->first + i);
    }
    if (t->count == 0 && !t->why.code) {
        struct buf b;

        buf_init(&b, SIZE_MAX);
        put_str(&b, "no job of yours runs on this machine");
        draw_line(t, 1, &b, A_NORMAL);
        buf_fini(&b);
    }
    draw_foot(t, "q leave  enter open  l lines  k stacks  sort: n r c m t");
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
        const uint8_t *end = rest.n ? memchr(rest.p, '\n', rest.n) : NULL;
        const size_t n = end ? (size_t)(end - rest.p) : rest.n;

        if (number++ >= t->text_first || !rest.n) {
            put_plain(&b, span_of(rest.p, n));
            draw_line(t, y++, &b, A_NORMAL);
        }
        rest = end ? span_of(end + 1, rest.n - n - 1) : span_of(NULL, 0);
    }
    buf_fini(&b);
    draw_foot(t, "q back  up, down, page: move");
}

static void draw(struct top *t)
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

static int64_t chosen_rank(const struct row *r)
{
    if (!r || !r->node)
        return -1;
    return (int64_t)(r->worker ? json_num(r->worker, "rank", -1)
                               : json_num(r->node, "first_rank", -1));
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
        if (t->all.calls[i].answer == r->status)
            return t->all.calls[i].name;
    return (struct local_name){ 0 };
}

static void show_lines(struct top *t)
{
    const struct row *r = chosen(t);
    const int64_t rank = chosen_rank(r);
    struct local_call call = { 0 };
    char title[64];

    if (rank < 0)
        return;
    snprintf(title, sizeof title, "last lines of rank %lld", (long long)rank);
    call.name = answered_by(t, r);
    if (!call.name.pid) {
        set_text(t, title, span_str("They can only be shown on a machine of the job."));
        return;
    }
    json_t *ask = json_pack("{s:s, s:I}", "ask", "lines", "rank", (json_int_t)rank);
    if (ask && local_socket_ask(ask, &call, 1, 2000, NULL) == 0)
        set_text(t, title,
                 call.answer ? span_of(json_string_value(call.answer),
                                       json_string_length(call.answer))
                             : span_str(call.error.text));
    local_calls_fini(&call, 1);
    json_decref(ask);
}

/* `muster stacks` does the reading and the merging; its output is shown as it is. */
static void show_stacks(struct top *t)
{
    const struct row *r = chosen(t);
    const struct span id =
        json_span(json_object_get(r ? r->status : NULL, "job"), "run_id");
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
    if (r->worker) {
        snprintf(rank, sizeof rank, "%lld", (long long)chosen_rank(r));
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

static void toggle(struct top *t)
{
    const struct row *r = chosen(t);
    char key[160];

    if (!r || r->kind == ROW_JOB)
        return;
    key_of(r, key);
    if (json_object_get(t->open, key))
        json_object_del(t->open, key);
    else
        json_object_set_new(t->open, key, json_true());
    while (t->rows[t->at].kind == ROW_WORKER)
        t->at--; /* The chosen line may disappear, but that of its node stays. */
    build_rows(t);
}

static void move_by(struct top *t, long by)
{
    const long at = (long)t->at + by, last = (long)t->count - 1;

    if (buf_len(&t->text)) {
        const long first = (long)t->text_first + by;

        t->text_first = first > 0 ? (size_t)first : 0;
        return;
    }
    t->at = at < 0 || last < 0 ? 0 : (size_t)MIN_OF(at, last);
}

static void on_key(struct top *t, int key)
{
    const long page = getmaxy(t->w) > 4 ? getmaxy(t->w) - 3 : 1;

    switch (key) {
    case 'q':
    case 27:
        if (buf_len(&t->text))
            buf_clear(&t->text);
        else
            t->over = key == 'q';
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
        toggle(t);
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
        t->colors = true;
    }
    return 0;
}

static void run(struct top *t)
{
    while (!t->over) {
        refresh_answers(t);
        draw(t);
        wtimeout(t->w, REFRESH_MS);
        for (int key; !t->over && (key = wgetch(t->w)) != ERR;) {
            on_key(t, key);
            draw(t);
            wtimeout(t->w, 0); /* Take the keys that are there, then ask again. */
        }
    }
}

static int show(void *args, struct muster_error *err)
{
    struct top *t = args;
    int rc = 0;

    (void)setlocale(LC_CTYPE, "");
    buf_init(&t->text, SIZE_MAX);
    t->rows = mem_calloc(ROWS_MAX, sizeof *t->rows);
    t->open = json_object();
    if (!t->rows || !t->open)
        rc = err_nomem(err);
    if (rc == 0 && t->ask.job) { /* Report a missing job before the screen changes. */
        struct answers all;

        rc = answers_get(&all, t->ask.job, t->ask.token_file, "status", err);
        if (rc == 0)
            answers_fini(&all);
    }
    if (rc == 0)
        rc = open_screen(t, err);
    if (rc == 0) {
        run(t);
        (void)endwin();
    }
    answers_fini(&t->all);
    json_decref(t->open);
    mem_free(t->rows);
    buf_fini(&t->text);
    return rc;
}

int cmd_top(int argc, char **argv)
{
    static const struct option options[] = {
        { "token-file", required_argument, NULL, 'T' },
        { "help", no_argument, NULL, 'h' },
        { NULL, 0, NULL, 0 },
    };
    static const struct ask_command command = { PROG, help, options, NULL, show };
    struct top t = { .sort = 'r' };

    return ask_main(&command, &t.ask, argc, argv);
}
