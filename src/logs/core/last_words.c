/* last_words.c - see last_words.h. */
#include "logs/core/last_words.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/escape.h"
#include "base/mem.h"

#define TRACEBACK "Traceback (most recent call last):"
#define LINES_MAX 2048u

static struct span find_bytes(struct span in, const char *what)
{
    const void *at = in.n ? memmem(in.p, in.n, what, strlen(what)) : NULL;

    return at ? span_of(at, in.n - (size_t)((const uint8_t *)at - in.p))
              : span_of(NULL, 0);
}

bool last_words_has_traceback(struct span bytes)
{
    return find_bytes(bytes, TRACEBACK).n != 0;
}

bool last_words_has_uncaught(struct span bytes, int64_t rank)
{
    char marked[64];

    (void)snprintf(marked, sizeof marked, "[rank%" PRId64 "]: " TRACEBACK, rank);
    return find_bytes(bytes, marked).n != 0;
}

/* ---- lines ---- */

/* The number of bytes that a colour sequence takes at the start of text, or 0: "ESC [
 * 1;35 m", and "ESC [ K", with which gcc and grep end theirs. */
static size_t color_len(struct span text)
{
    size_t i = 2;

    if (text.n < 3 || text.p[0] != 0x1b || text.p[1] != '[')
        return 0;
    while (i < text.n && i < 32 &&
           ((text.p[i] >= '0' && text.p[i] <= '9') || text.p[i] == ';'))
        i++;
    return i < text.n && (text.p[i] == 'm' || text.p[i] == 'K') ? i + 1 : 0;
}

/* Copies text without its colours to a buffer of the same size: Python 3.13 and newer
 * color tracebacks, in the middle of what is read below. */
static struct span without_colors(uint8_t *to, struct span text)
{
    size_t n = 0;

    while (text.n) {
        const size_t skip = color_len(text);

        if (!skip)
            to[n++] = text.p[0];
        text = span_skip(text, skip ? skip : 1);
    }
    return span_of(to, n);
}

/* What a person saw last of a line that was overwritten with carriage returns. */
static struct span as_seen(struct span line)
{
    while (line.n && line.p[line.n - 1] == '\r')
        line.n--;
    for (size_t i = line.n; i-- > 0;)
        if (line.p[i] == '\r')
            return span_skip(line, i + 1);
    return line;
}

/* The line without the "[rank3]: " that torch puts before it. Sets *rank, to -1 if
 * there is none. */
static struct span without_mark(struct span line, int64_t *rank)
{
    struct span rest = line;
    uint64_t n;

    *rank = -1;
    if (!span_starts(line, "[rank"))
        return line;
    rest = span_skip(line, 5);
    if (!span_take_number(&rest, &n) || n > INT64_MAX || !span_starts(rest, "]:"))
        return line;
    *rank = (int64_t)n;
    return span_skip(rest, span_starts(rest, "]: ") ? 3 : 2);
}

/* Whether -t has copied the line from a worker's file: it begins with "[default3]:". */
static bool is_teed(struct span line)
{
    uint64_t rank;

    if (!span_starts(line, "[default"))
        return false;
    line = span_skip(line, 8);
    return span_take_number(&line, &rank) && span_starts(line, "]:");
}

static bool is_digits(struct span s, size_t from, size_t count)
{
    for (size_t i = from; i < from + count; i++)
        if (i >= s.n || s.p[i] < '0' || s.p[i] > '9')
            return false;
    return true;
}

/* Whether the line is from the log of an agent, ours or torch's, that shares the file:
 * "W1116 15:32:36.750000 4711 muster/agent] ..." */
static bool is_log_line(struct span line)
{
    return line.n > 22 && memchr("DIWEC", line.p[0], 5) && is_digits(line, 1, 4) &&
           line.p[5] == ' ' && is_digits(line, 6, 2) && line.p[8] == ':' &&
           is_digits(line, 9, 2) && line.p[11] == ':' && is_digits(line, 12, 2) &&
           (find_bytes(line, " muster/").n ||
            find_bytes(line, " site-packages/torch/").n ||
            find_bytes(line, " torch/distributed/").n);
}

/* Whether the line is what an agent prints about restarts and nodes. A verdict does not
 * count: if the worker runs a job of its own, that job's verdict explains the
 * failure. */
static bool is_job_line(struct span line)
{
    return span_starts(line, "muster: ") &&
           !span_starts(line, "muster: the job failed") &&
           (find_bytes(line, ". Restart ").n ||
            find_bytes(line, " started again after ").n ||
            find_bytes(line, " as a restart.").n ||
            find_bytes(line, " left the job").n || find_bytes(line, " was lost (").n);
}

struct lines {
    struct span at[LINES_MAX]; /* point into text */
    size_t count;
    bool shared; /* others may write between the worker's lines */
    uint8_t text[LAST_WORDS_BYTES];
};

/* Finds the last LINES_MAX lines of this rank, and strips their "[rank3]: ". */
static void split(struct lines *l, struct span tail, int64_t rank)
{
    const uint8_t *end = tail.p + tail.n;
    size_t n = 0;

    l->count = 0;
    l->shared = rank >= 0;
    while (end > tail.p && n < LINES_MAX) {
        const uint8_t *nl = memrchr(tail.p, '\n', (size_t)(end - tail.p));
        const uint8_t *from = nl ? nl + 1 : tail.p;
        int64_t whose;
        const struct span line =
            without_mark(as_seen(span_of(from, (size_t)(end - from))), &whose);

        if (!(from == end && n == 0) &&
            (rank < 0 || ((whose < 0 || whose == rank) && !is_log_line(line) &&
                          !is_job_line(line) && !is_teed(line))))
            l->at[LINES_MAX - ++n] = line;
        if (!nl)
            break;
        end = nl;
    }
    memmove(l->at, &l->at[LINES_MAX - n], n * sizeof l->at[0]);
    l->count = n;
}

/* ---- Python ---- */

static bool is_word(uint8_t c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           c == '_' || c == '.' || c == '<' || c == '>';
}

/* "pkg.SomeError: text", "f.<locals>.SomeError: text" or "KeyboardInterrupt": a dotted
 * name, then a colon or the end. */
static bool is_exception(struct span line)
{
    size_t i = 0;

    if (line.n == 0 || !is_word(line.p[0]) || (line.p[0] >= '0' && line.p[0] <= '9'))
        return false;
    while (i < line.n && is_word(line.p[i]))
        i++;
    return i == line.n ||
           (line.p[i] == ':' && (i + 1 == line.n || line.p[i + 1] == ' '));
}

struct frame {
    struct span file, rest; /* rest: ", line 41, in load" */
    struct span source;
    int64_t line;
};

/* Reads a line like this:   File "train.py", line 41, in load */
static bool read_frame(struct span line, struct frame *f)
{
    struct span rest;
    uint64_t n;

    if (!span_starts(line, "  File \""))
        return false;
    line = span_skip(line, 8);
    rest = find_bytes(line, "\", line ");
    if (rest.n == 0)
        return false;
    *f = (struct frame){ .file = span_of(line.p, line.n - rest.n),
                         .rest = span_skip(rest, 1) };
    rest = span_skip(rest, 8);
    if (!span_take_number(&rest, &n) || n > INT64_MAX)
        return false;
    f->line = (int64_t)n;
    return true;
}

/* Whether it is not the user's: an installed package, the standard library, no file. */
static bool is_library(struct span file)
{
    return span_starts(file, "<") || find_bytes(file, "/site-packages/").n ||
           find_bytes(file, "/dist-packages/").n ||
           find_bytes(file, "/lib/python3").n || find_bytes(file, "/lib64/python3").n;
}

static struct span stripped(struct span s)
{
    while (s.n && (s.p[0] == ' ' || s.p[0] == '\t'))
        s = span_skip(s, 1);
    return s;
}

/* Line i is the head of a traceback. Returns the index of the exception's line, or
 * l->count if there is none. */
static size_t read_traceback(const struct lines *l, size_t i, struct frame *best)
{
    bool own = false, any = false;
    struct frame f;

    for (i++; i < l->count; i++) {
        if (read_frame(l->at[i], &f)) {
            if (i + 1 < l->count && span_starts(l->at[i + 1], "    "))
                f.source = stripped(l->at[i + 1]);
            if (!is_library(f.file) || !own) {
                own = !is_library(f.file) || own;
                any = true;
                *best = f;
            }
        } else if (l->at[i].n && l->at[i].p[0] != ' ') {
            if (is_exception(l->at[i]) || (any && !l->shared))
                return i;
            if (!l->shared)
                break;
        }
    }
    return l->count;
}

static void put_frame(struct last_words *w, const struct frame *f)
{
    if (f->file.n == 0)
        return;
    (void)buf_append_str(&w->place, "File \"");
    (void)escape_append(&w->place, span_of(f->file.p, MIN_OF(f->file.n, 400)), 0);
    (void)buf_append_str(&w->place, "\"");
    (void)escape_append(&w->place, span_of(f->rest.p, MIN_OF(f->rest.n, 200)), 0);
    (void)escape_append(&w->source, span_of(f->source.p, MIN_OF(f->source.n, 300)), 0);
    (void)escape_append(&w->file, span_of(f->file.p, MIN_OF(f->file.n, 400)), 0);
    w->line = f->line;
}

static void put_words(struct last_words *w, struct span line)
{
    (void)escape_append(&w->text, span_of(line.p, MIN_OF(line.n, 900)), 0);
}

/* If the exception's first line has only its name, the text is in the next one. */
static void put_exception(struct last_words *w, const struct lines *l, size_t i)
{
    struct span line = l->at[i];

    put_words(w, line);
    if (line.n && line.p[line.n - 1] == ':' && i + 1 < l->count) {
        (void)buf_append_str(&w->text, " ");
        put_words(w, stripped(l->at[i + 1]));
    }
}

static bool understand_python(struct last_words *w, const struct lines *l)
{
    for (size_t i = l->count; i-- > 0;) {
        struct frame f = { 0 };

        if (!span_starts(l->at[i], TRACEBACK))
            continue;
        const size_t at = read_traceback(l, i, &f);
        if (at == l->count)
            continue; /* It was cut off, or something else follows. */
        w->python = true;
        put_exception(w, l, at);
        put_frame(w, &f);
        return true;
    }
    return false;
}

/* A syntax error has a file and a line, but no traceback. */
static bool understand_syntax(struct last_words *w, const struct lines *l)
{
    struct frame f = { 0 }, seen;
    size_t frame_at = 0;

    for (size_t i = 0; i < l->count; i++) {
        if (read_frame(l->at[i], &seen)) {
            f = seen;
            frame_at = i;
            if (i + 1 < l->count)
                f.source = stripped(l->at[i + 1]);
        } else if (f.file.n && i <= frame_at + 4 && is_exception(l->at[i]) &&
                   (span_starts(l->at[i], "SyntaxError") ||
                    span_starts(l->at[i], "IndentationError") ||
                    span_starts(l->at[i], "TabError"))) {
            w->python = true;
            put_words(w, l->at[i]);
            put_frame(w, &f);
            return true;
        }
    }
    return false;
}

/* ---- others ---- */

/* Reads what the C++ runtime prints:
 * terminate called after throwing an instance of 'std::runtime_error'
 *   what():  no luck */
static bool understand_cxx(struct last_words *w, const struct lines *l)
{
    static const char head[] = "terminate called after throwing an instance of '";

    for (size_t i = l->count; i-- > 0;) {
        struct span name;

        if (!span_starts(l->at[i], head))
            continue;
        name = span_skip(l->at[i], sizeof head - 1);
        while (name.n && name.p[name.n - 1] == '\'')
            name.n--;
        w->aborts = true;
        put_words(w, name);
        if (i + 1 < l->count && span_starts(stripped(l->at[i + 1]), "what():")) {
            (void)buf_append_str(&w->text, ": ");
            put_words(w, stripped(span_skip(stripped(l->at[i + 1]), 7)));
        }
        return true;
    }
    return false;
}

/* A thread of C++ was unwound: mostly one that wanted Python's lock when the
 * interpreter had been taken down. Nobody else uses these words. */
static bool understand_unwound(struct last_words *w, const struct lines *l)
{
    static const char words[] = "terminate called without an active exception";

    for (size_t n = 0; n < 10 && n < l->count; n++)
        if (find_bytes(l->at[l->count - 1 - n], words).n) {
            w->aborts = w->unwound = true;
            put_words(w, span_str(words));
            return true;
        }
    return false;
}

/* Finds a line near the end that explains the failure by itself. */
static bool understand_line(struct last_words *w, const struct lines *l)
{
    static const char *const known[] = {
        "can't open file",
        "No module named",
        "command not found",
        ": not found",
        "No such file or directory",
        "Permission denied",
        "cannot execute",
        "Exec format error",
        "Assertion `",
        "error while loading shared libraries",
        "Segmentation fault",
    };

    for (size_t n = 0; n < 10 && n < l->count; n++) {
        const struct span line = l->at[l->count - 1 - n];

        for (size_t k = 0; k < ARRAY_LEN(known); k++)
            if (find_bytes(line, known[k]).n) {
                w->aborts = span_starts(span_str(known[k]), "Assertion");
                put_words(w, line);
                return true;
            }
    }
    return false;
}

/* ---- all of it ---- */

static void put_lines(struct last_words *w, const struct lines *l)
{
    size_t from = l->count > LAST_WORDS_LINES ? l->count - LAST_WORDS_LINES : 0;

    for (; from < l->count; from++) {
        const struct span line = l->at[from];

        (void)escape_append(&w->lines, span_of(line.p, MIN_OF(line.n, LAST_WORDS_LINE)),
                            0);
        (void)buf_append_str(&w->lines, line.n > LAST_WORDS_LINE ? "...\n" : "\n");
    }
}

void last_words_read(struct last_words *w, struct span tail, int64_t rank)
{
    struct lines *l;

    *w = (struct last_words){ 0 };
    buf_init(&w->text, 1000);
    buf_init(&w->place, 1000);
    buf_init(&w->source, 1000);
    buf_init(&w->file, 1000);
    buf_init(&w->lines, 10000);
    if (tail.n > LAST_WORDS_BYTES)
        tail = span_skip(tail, tail.n - LAST_WORDS_BYTES);
    l = tail.n ? mem_alloc(sizeof *l) : NULL; /* too large for a small stack */
    if (!l)
        return;
    split(l, without_colors(l->text, tail), rank);
    put_lines(w, l);
    if (!understand_python(w, l) && !understand_syntax(w, l) && !understand_cxx(w, l) &&
        !understand_unwound(w, l))
        (void)understand_line(w, l);
    mem_free(l);
}

void last_words_fini(struct last_words *w)
{
    buf_fini(&w->text);
    buf_fini(&w->place);
    buf_fini(&w->source);
    buf_fini(&w->file);
    buf_fini(&w->lines);
    *w = (struct last_words){ 0 };
}
