/* log.c - see log.h. */
#include "logs/log.h"

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
static enum note_level torch_level(char *const *envp)
{
    const char *p = env_get(envp, "TORCH_LOGS");
    enum note_level level = NOTE_WARN;

    while (p && *p) {
        const size_t n = strcspn(p, ",");
        const struct span item = span_of(p, n);
        if (span_eq(item, span_str("distributed")))
            level = NOTE_INFO;
        else if (span_eq(item, span_str("+distributed")))
            level = NOTE_DEBUG;
        else if (span_eq(item, span_str("-distributed")))
            level = NOTE_ERROR;
        p += p[n] ? n + 1 : n;
    }
    return level;
}

static int read_level(struct log *n, char *const *envp, struct muster_error *err)
{
    static const struct {
        const char *word;
        enum note_level level;
    } words[] = {
        { "DEBUG", NOTE_DEBUG },    { "NOTSET", NOTE_WARN },
        { "INFO", NOTE_INFO },      { "WARNING", NOTE_WARN },
        { "WARN", NOTE_WARN },      { "ERROR", NOTE_ERROR },
        { "FATAL", NOTE_CRITICAL }, { "CRITICAL", NOTE_CRITICAL },
    };
    const char *level = env_get(envp, "LOGLEVEL");
    struct buf b;
    int rc;

    if (!level)
        return 0;
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (strcmp(words[i].word, level) == 0) {
            n->least = words[i].level;
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
static int open_copy(struct log *n, const char *path, struct muster_error *err)
{
    if (!path)
        return 0;
    n->copy_fd = open(*path ? path : ".",
                      O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
    if (n->copy_fd >= 0)
        return 0;
    return err_set(err, MUSTER_EIO,
                   "[Errno %d] %s: '%s'\nTORCH_LOGS_OUT names a file for a copy of all "
                   "messages; it cannot be opened.",
                   errno, strerror(errno), path);
}

int log_init(struct log *n, char *const *envp, struct muster_error *err)
{
    const char *format = env_get(envp, "TORCH_LOGS_FORMAT");
    struct muster_error bad;

    *n = (struct log){ .fd = STDERR_FILENO,
                       .least = NOTE_WARN,
                       .torch_least = torch_level(envp),
                       .copy_fd = -1,
                       .began_ns = uv_hrtime() };
    int rc = format ? logline_format(format, &n->format, &bad) : 0;
    if (rc != 0 && rc != MUSTER_ENOTSUP) {
        if (err)
            *err = bad;
        return rc;
    }
    int level = read_level(n, envp, err);
    if (level == 0)
        level = open_copy(n, env_get(envp, "TORCH_LOGS_OUT"), err);
    if (rc != 0 && level == 0)
        note(n, NOTE_WARN, AT_LOG,
             "TORCH_LOGS_FORMAT: %s\nMessages come in the usual form.", bad.text);
    return level;
}

static int put_prefix(struct buf *b, enum note_level level, const char *where)
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
static void write_all(int fd, struct buf *b)
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
static int put_usual(struct buf *b, enum note_level level, const char *where,
                     const char *text)
{
    for (const char *p = text; p;) {
        const size_t len = strcspn(p, "\n");

        (void)put_prefix(b, level, where);
        (void)buf_printf(b, "%.*s\n", (int)len, p);
        p = p[len] ? p + len + 1 : NULL;
    }
    return buf_error(b);
}

/* As TORCH_LOGS_FORMAT has it. */
static int put_formatted(struct buf *b, const struct log *n, enum note_level level,
                         const char *where, const char *text)
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
        .since_start = (double)(uv_hrtime() - n->began_ns) / 1e6,
        .pid = (int)getpid(),
    };
    return logline_print(b, n->format, &r);
}

static int put_plain(struct buf *b, const char *text)
{
    return buf_printf(b, "muster: %s\n", text);
}

/* For people: the first line says what, the others belong to it. */
static int put_brief(struct buf *b, const char *text)
{
    for (const char *p = text; *p;) {
        const size_t len = strcspn(p, "\n");

        (void)buf_printf(b, "%s%.*s\n", p == text ? "muster: " : "        ", (int)len,
                         p);
        p += len + (p[len] == '\n');
    }
    return buf_error(b);
}

/* Run ids, addresses and a server's own words come from strangers: the text is escaped.
 */
static int put_message(struct buf *b, const struct log *n, enum note_level level,
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
        rc = n->format                         ? put_formatted(b, n, level, where, text)
             : places[place].flags & LOG_PLAIN ? put_plain(b, text)
             : brief                           ? put_brief(b, text)
                                               : put_usual(b, level, where, text);
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

void note(const struct log *n, enum note_level level, enum log_place place,
          const char *fmt, ...)
{
    const enum note_level least =
        places[place].flags & LOG_TORCH ? n->torch_least : n->least;
    struct log_screen *s = n->screen && n->screen->brief ? n->screen : NULL;
    char *text = NULL;
    struct buf b, copy;
    va_list ap;

    if (n->fd < 0 || level < least)
        return;
    va_start(ap, fmt);
    int rc = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (rc < 0)
        return;
    buf_init(&b, SIZE_MAX);
    buf_init(&copy, SIZE_MAX);
    /* One write a message. A full disk only costs the copy. */
    if (n->copy_fd >= 0 && put_message(&copy, n, level, place, false, text) == 0)
        rc = (int)write(n->copy_fd, buf_data(&copy), buf_len(&copy));
    if (!s || says_briefly(s, places[place].flags)) {
        (void)put_message(&b, n, level, place, s != NULL, text);
        status_line(n, NULL); /* It comes back with the next look at the clock. */
        write_all(n->fd, &b);
    }
    buf_fini(&copy);
    buf_fini(&b);
    free(text);
}
