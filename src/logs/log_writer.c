/* log_writer.c - see log_writer.h. */
#include "logs/log_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/escape.h"
#include "base/py/repr.h"
#include "base/text_list.h"
#include "logs/core/log_format.h"

#define PATIENCE_MS 100
#define ADVICES_MAX 2

/* TORCH_LOGS: "distributed" is INFO, "+distributed" DEBUG, "-distributed" ERROR. */
static enum log_level torch_level(char *const *envp)
{
    const char *p = env_get(envp, "TORCH_LOGS");
    enum log_level level = LOG_WARN;

    while (p && *p) {
        const size_t n = strcspn(p, ",");
        const struct span item = span_of(p, n);
        if (span_eq(item, span_str("distributed")))
            level = LOG_INFO;
        else if (span_eq(item, span_str("+distributed")))
            level = LOG_DEBUG;
        else if (span_eq(item, span_str("-distributed")))
            level = LOG_ERROR;
        p += p[n] ? n + 1 : n;
    }
    return level;
}

static int read_level(struct log_writer *w, char *const *envp, struct muster_error *err)
{
    static const struct {
        const char *word;
        enum log_level level;
    } words[] = {
        { "DEBUG", LOG_DEBUG },    { "NOTSET", LOG_WARN },       { "INFO", LOG_INFO },
        { "WARNING", LOG_WARN },   { "WARN", LOG_WARN },         { "ERROR", LOG_ERROR },
        { "FATAL", LOG_CRITICAL }, { "CRITICAL", LOG_CRITICAL },
    };
    const char *level = env_get(envp, "LOGLEVEL");
    struct buf b;
    int rc;

    if (!level)
        return 0;
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (strcmp(words[i].word, level) == 0) {
            w->log.least = words[i].level;
            return 0;
        }
    buf_init(&b, SIZE_MAX);
    if (py_repr(&b, level) || buf_u8(&b, 0))
        rc = err_nomem(err);
    else
        rc = err_set(err, MUSTER_EINVAL,
                     "Unknown level: %s\n"
                     "LOGLEVEL is one of DEBUG, INFO, WARNING, ERROR, CRITICAL.",
                     (const char *)buf_data(&b));
    buf_fini(&b);
    return rc;
}

/* As Python's FileHandler: made if it is not there, written at its end. */
static int open_copy(struct log_writer *w, const char *path, struct muster_error *err)
{
    if (!path)
        return 0;
    w->copy_fd = open(*path ? path : ".",
                      O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
    if (w->copy_fd >= 0)
        return 0;
    return err_set(err, MUSTER_EIO,
                   "[Errno %d] %s: '%s'\nTORCH_LOGS_OUT names a file for a copy of all "
                   "messages; it cannot be opened.",
                   errno, strerror(errno), path);
}

static int put_prefix(struct buf *b, enum log_level level, const char *where)
{
    struct timespec ts;
    struct tm tm;
    char when[32];

    (void)clock_gettime(CLOCK_REALTIME, &ts);
    (void)localtime_r(&ts.tv_sec, &tm);
    (void)strftime(when, sizeof when, "%m%d %H:%M:%S", &tm);
    return buf_printf(b, "%c%s.%03ld000 %d %s] ", "VIWEC"[level], when,
                      ts.tv_nsec / 1000000, (int)getpid(), where);
}

/* A pipe that nobody reads must not stop the agent, heartbeats and all: what does not
 * go within a moment is dropped. Ready for writing, a pipe takes PIPE_BUF bytes at
 * once. */
static void write_in_time(int fd, struct buf *b)
{
    struct pollfd ready = { .fd = fd, .events = POLLOUT };

    while (buf_len(b)) {
        if (poll(&ready, 1, PATIENCE_MS) == 0)
            return;
        const ssize_t n = write(fd, buf_data(b), MIN_OF(buf_len(b), PIPE_BUF));

        if (n <= 0) /* The reader is gone: drop the rest. */
            return;
        buf_consume(b, (size_t)n);
    }
}

static const struct {
    const char *text;
    unsigned flags;
} places[] = {
#define PLACE_ROW(place, text, flags) [place] = { text, flags },
    LOG_PLACES(PLACE_ROW)
#undef PLACE_ROW
};

/* The usual form: every line has the prefix. */
static int put_usual_lines(struct buf *b, enum log_level level, const char *where,
                           const char *text)
{
    struct span rest = span_str(text);

    do {
        const struct span line = span_take_line(&rest);

        (void)put_prefix(b, level, where);
        (void)buf_printf(b, "%.*s\n", (int)line.n, (const char *)line.p);
    } while (rest.p);
    return buf_error(b);
}

/* As TORCH_LOGS_FORMAT has it. */
static int put_formatted(struct buf *b, const struct log_writer *w,
                         enum log_level level, const char *where, const char *text)
{
    static const char *const names[] = { "DEBUG", "INFO", "WARNING", "ERROR",
                                         "CRITICAL" };
    struct timespec ts;
    struct tm tm;
    char when[32], asctime[48];

    (void)clock_gettime(CLOCK_REALTIME, &ts);
    (void)localtime_r(&ts.tv_sec, &tm);
    (void)strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &tm);
    (void)snprintf(asctime, sizeof asctime, "%s,%03ld", when, ts.tv_nsec / 1000000);
    const struct log_record r = {
        .level = names[level],
        .level_number = 10 + 10 * (int)level,
        .where = where,
        .message = text,
        .asctime = asctime,
        .created = (double)ts.tv_sec + (double)ts.tv_nsec / 1e9,
        .since_start = (double)(uv_hrtime() - w->began_ns) / 1e6,
        .pid = (int)getpid(),
    };
    return logline_print(b, w->format, &r);
}

static int put_plain_line(struct buf *b, const char *text)
{
    return buf_printf(b, "muster: %s\n", text);
}

/* For people: the first line says what, the others belong to it. */
static int put_brief_lines(struct buf *b, const char *text)
{
    const char *before = "muster: ";

    for (struct span rest = span_str(text); rest.n > 0; before = "        ") {
        const struct span line = span_take_line(&rest);

        (void)buf_printf(b, "%s%.*s\n", before, (int)line.n, (const char *)line.p);
    }
    return buf_error(b);
}

/* Run ids, addresses and a server's own words come from strangers: the text is
 * escaped. */
static int put_message(struct buf *b, const struct log_writer *w, enum log_level level,
                       enum log_place place, bool brief, const char *text)
{
    const char *where = places[place].text;
    struct buf clean;

    buf_init(&clean, SIZE_MAX);
    (void)escape_append(&clean, span_str(text), ESCAPE_LINES);
    (void)buf_u8(&clean, 0);
    int rc = buf_error(&clean);
    if (rc == 0) {
        text = (const char *)buf_data(&clean);
        rc = w->format                         ? put_formatted(b, w, level, where, text)
             : places[place].flags & LOG_PLAIN ? put_plain_line(b, text)
             : brief                           ? put_brief_lines(b, text)
                                               : put_usual_lines(b, level, where, text);
    }
    buf_fini(&clean);
    return rc;
}

/* Whether a message of this kind is said to people. */
static bool says_briefly(struct log_screen *s, unsigned flags)
{
    if (flags & LOG_ADVICE)
        return s->advices++ < ADVICES_MAX;
    return !(flags & LOG_CHATTER);
}

static void log_writer_emit(void *ctx, enum log_level level, enum log_place place,
                            const char *text)
{
    const struct log_writer *w = ctx;
    struct log_screen *s = w->screen && w->screen->brief ? w->screen : NULL;
    struct buf b, copy;

    buf_init(&b, SIZE_MAX);
    buf_init(&copy, SIZE_MAX);
    /* One write a message. A full disk only costs the copy. */
    if (w->copy_fd >= 0 && put_message(&copy, w, level, place, false, text) == 0 &&
        write(w->copy_fd, buf_data(&copy), buf_len(&copy)) < 0)
        buf_clear(&copy);
    if (!s || says_briefly(s, places[place].flags)) {
        (void)put_message(&b, w, level, place, s != NULL, text);
        status_line(w, NULL); /* It comes back with the next look at the clock. */
        write_in_time(w->fd, &b);
    }
    buf_fini(&copy);
    buf_fini(&b);
}

int log_writer_init(struct log_writer *w, char *const *envp, struct muster_error *err)
{
    const char *format = env_get(envp, "TORCH_LOGS_FORMAT");
    struct muster_error bad;

    *w = (struct log_writer){ .log = { .emit = log_writer_emit,
                                       .ctx = w,
                                       .least = LOG_WARN,
                                       .torch_least = torch_level(envp) },
                              .fd = STDERR_FILENO,
                              .copy_fd = -1,
                              .began_ns = uv_hrtime() };
    int rc = format ? logline_format(format, &w->format, &bad) : 0;
    if (rc != 0 && rc != MUSTER_ENOTSUP) {
        if (err)
            *err = bad;
        return rc;
    }
    int level = read_level(w, envp, err);
    if (level == 0)
        level = open_copy(w, env_get(envp, "TORCH_LOGS_OUT"), err);
    if (rc != 0 && level == 0)
        log_line(&w->log, LOG_WARN, AT_LOG,
                 "TORCH_LOGS_FORMAT: %s\nMessages come in the usual form.", bad.text);
    return level;
}
