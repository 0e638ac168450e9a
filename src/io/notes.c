/* notes.c - see notes.h. */
#include "io/notes.h"

#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "group/options.h"
#include "group/pyform.h"

#define PATIENCE_MS 100

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

int notes_init(struct notes *n, char *const *envp, struct muster_error *err)
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

    *n = (struct notes){ STDERR_FILENO, NOTE_WARN, torch_level(envp) };
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

        if (n <= 0) /* Nobody listens: nothing more to say. */
            return;
        buf_consume(b, (size_t)n);
    }
}

/* These parts of torchrun do not listen to LOGLEVEL but to TORCH_LOGS. */
static bool torch_logging(const char *where)
{
    return strstr(where, "elastic/multiprocessing/api.py") ||
           strstr(where, "tail_log.py") || strstr(where, "error_handler.py") ||
           strstr(where, "elastic/rendezvous/") || strstr(where, "muster/rendezvous");
}

void note(const struct notes *n, enum note_level level, const char *where,
          const char *fmt, ...)
{
    struct buf b;
    char *text = NULL;
    va_list ap;
    int rc = 0;

    if (n->fd < 0 || level < (torch_logging(where) ? n->torch_least : n->least))
        return;
    va_start(ap, fmt);
    rc = vasprintf(&text, fmt, ap) < 0;
    va_end(ap);
    buf_init(&b, SIZE_MAX);
    for (const char *p = rc ? NULL : text; p && rc == 0;) {
        const size_t len = strcspn(p, "\n");

        rc = put_prefix(&b, level, where);
        rc = rc ? rc : buf_printf(&b, "%.*s\n", (int)len, p);
        p = p[len] ? p + len + 1 : NULL;
    }
    write_all(n->fd, &b);
    buf_fini(&b);
    free(text);
}
