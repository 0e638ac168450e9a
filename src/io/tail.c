/* tail.c - see tail.h. */
#include "io/tail.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "group/tee.h"
#include "io/console.h"

#define CHUNK   (64u << 10)
#define TURN    (1u << 20) /* read from one file before others get their turn */
#define BUSY_MS 5          /* between looks while output keeps coming */
#define PARTIAL_MS                                                                     \
    100 /* an unfinished line is shown after this, as torch's poll does */
#define CHUNKS_MAX (TURN / CHUNK)

struct tail {
    struct tail *next;
    int fd, copy_fd;
    char *name;   /* owned */
    char *prefix; /* owned */
    bool is_stderr, given_up;
    struct tee tee;
    uint64_t partial_since; /* loop time of the first byte of an unfinished line */
};

struct tails {
    struct tails_opts opts;
    struct tail *list;
    int inotify;
    uv_poll_t events;
    uv_timer_t timer;
    bool watching; /* waiting for an event; else the timer looks */
    struct console out[2];
    struct buf copy; /* lines for the filter file, per turn */
    uint8_t *chunk;  /* owned */
    void (*drained)(void *ctx);
    void *drained_ctx;
    int closing; /* handles yet to close */
};

static void look(struct tails *t);

static void on_console_ready(void *ctx)
{
    look(ctx);
}

/* --- reading ---------------------------------------------------------------------- */

static void give_up(struct tails *t, struct tail *f, int errnum)
{
    if (f->given_up)
        return;
    f->given_up = true;
    t->opts.on_trouble(t->opts.ctx, f->name, errnum);
}

static void write_copy(struct tails *t, struct tail *f)
{
    while (buf_len(&t->copy) > 0 && f->copy_fd >= 0) {
        const ssize_t n = write(f->copy_fd, buf_data(&t->copy), buf_len(&t->copy));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            f->copy_fd = -1;
            t->opts.on_trouble(t->opts.ctx, f->name, errno);
            break;
        }
        buf_consume(&t->copy, (size_t)n);
    }
    buf_clear(&t->copy);
}

/* Reads what is new, up to a turn's worth. True if there may be more. */
static bool read_one(struct tails *t, struct tail *f, bool *any)
{
    struct console *c = &t->out[f->is_stderr];

    for (unsigned i = 0; i < CHUNKS_MAX && !f->given_up; i++) {
        if (c->broken)
            give_up(t, f, c->broken);
        if (console_full(c)) {
            console_flush(c);
            if (console_full(c))
                return true;
        }
        const ssize_t n = read(f->fd, t->chunk, CHUNK);
        if (n == 0)
            return false;
        if (n < 0) {
            give_up(t, f, errno);
            return false;
        }
        if (tee_feed(&f->tee, span_of(t->chunk, (size_t)n), &c->out, &t->copy) != 0)
            give_up(t, f, ENOMEM);
        write_copy(t, f);
        f->partial_since = 0;
        *any = true;
    }
    return !f->given_up;
}

/* A line that has been unfinished for a while is shown as it is. Returns how long until
 * that is due, or 0 if nothing is held. */
static uint64_t settle_partial(struct tails *t, struct tail *f, bool now)
{
    const uint64_t time = uv_now(t->opts.loop);

    if (!tee_holds(&f->tee) || f->given_up)
        return 0;
    if (f->partial_since == 0)
        f->partial_since = MAX_OF(time, 1);
    if (!now && time < f->partial_since + PARTIAL_MS)
        return f->partial_since + PARTIAL_MS - time;
    tee_flush(&f->tee, &t->out[f->is_stderr].out, &t->copy);
    write_copy(t, f);
    f->partial_since = 0;
    return 0;
}

/* --- taking turns ----------------------------------------------------------------- */

static void on_timer(uv_timer_t *timer)
{
    look(timer->data);
}

static void on_event(uv_poll_t *poll, int status, int events)
{
    struct tails *t = poll->data;
    char skipped[4096];

    (void)status;
    (void)events;
    uv_poll_stop(&t->events);
    t->watching = false;
    while (read(t->inotify, skipped, sizeof skipped) > 0)
        ; /* Which file it was matters little: all are looked at. */
    look(t);
}

static void forget_files(struct tails *t)
{
    while (t->list) {
        struct tail *f = t->list;
        t->list = f->next;
        close(f->fd);
        tee_fini(&f->tee);
        mem_free(f->name);
        mem_free(f->prefix);
        mem_free(f);
    }
}

static void on_drained(uv_timer_t *timer)
{
    struct tails *t = timer->data;
    void (*cb)(void *) = t->drained;

    t->drained = NULL;
    forget_files(t);
    if (cb)
        cb(t->drained_ctx);
}

/* Everything read and printed, or past help. */
static bool all_shown(struct tails *t, bool more)
{
    if (more)
        return false;
    for (struct tail *f = t->list; f; f = f->next)
        settle_partial(t, f, true);
    console_flush(&t->out[0]);
    console_flush(&t->out[1]);
    return console_empty(&t->out[0]) && console_empty(&t->out[1]);
}

static void watch(struct tails *t)
{
    if (t->watching)
        return;
    t->watching = true;
    uv_poll_start(&t->events, UV_READABLE, on_event);
}

/* One turn for every file, then decide when to look again. */
static void look(struct tails *t)
{
    bool more = false, any = false;
    uint64_t partial_ms = 0;

    uv_update_time(t->opts.loop);
    for (struct tail *f = t->list; f; f = f->next) {
        more |= read_one(t, f, &any);
        const uint64_t due = settle_partial(t, f, false);
        if (due && (partial_ms == 0 || due < partial_ms))
            partial_ms = due;
    }
    console_flush(&t->out[0]);
    console_flush(&t->out[1]);
    const bool blocked = console_full(&t->out[0]) || console_full(&t->out[1]);

    if (t->drained && all_shown(t, more))
        uv_timer_start(&t->timer, on_drained, 0, 0);
    else if (blocked)
        uv_timer_stop(&t->timer); /* the console's readiness wakes us */
    else if (more) /* Not 0: libuv would call us again before it looks at anything else.
                    */
        uv_timer_start(&t->timer, on_timer, 1, 0);
    else if (t->drained) /* only the console is behind */
        uv_timer_start(&t->timer, on_timer, BUSY_MS, 0);
    else if (any)
        uv_timer_start(&t->timer, on_timer, BUSY_MS, 0);
    else {
        watch(t); /* What was written since the read is in the event queue. */
        if (partial_ms)
            uv_timer_start(&t->timer, on_timer, partial_ms, 0);
        else
            uv_timer_stop(&t->timer);
    }
}

/* --- open, add, drain, close ------------------------------------------------------ */

int tails_open(const struct tails_opts *opts, struct tails **out,
               struct muster_error *err)
{
    struct tails *t = mem_calloc(1, sizeof *t);

    if (!t)
        return err_nomem(err);
    t->opts = *opts;
    t->chunk = mem_alloc(CHUNK);
    t->inotify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (!t->chunk || t->inotify < 0) {
        const int errnum = errno;
        mem_free(t->chunk);
        mem_free(t);
        return err_set(err, MUSTER_EIO,
                       "cannot follow log files: inotify: %s\n"
                       "See the limits in /proc/sys/fs/inotify.",
                       strerror(errnum));
    }
    buf_init(&t->copy, SIZE_MAX);
    console_open(&t->out[0], opts->loop, STDOUT_FILENO, on_console_ready, t);
    console_open(&t->out[1], opts->loop, STDERR_FILENO, on_console_ready, t);
    uv_poll_init(opts->loop, &t->events, t->inotify);
    uv_timer_init(opts->loop, &t->timer);
    t->events.data = t->timer.data = t;
    *out = t;
    return 0;
}

int tails_add(struct tails *t, const struct tail_spec *spec, struct muster_error *err)
{
    struct tail *f = mem_calloc(1, sizeof *f);

    if (!f)
        return err_nomem(err);
    f->fd = open(spec->path, O_RDONLY | O_CLOEXEC);
    f->name = mem_strdup(spec->name);
    f->prefix = mem_strndup((const char *)spec->prefix.p, spec->prefix.n);
    int rc = 0;
    if (f->fd < 0)
        rc = err_set(err, MUSTER_EIO, "%s: %s", spec->path, strerror(errno));
    else if (!f->name || !f->prefix)
        rc = err_nomem(err);
    else if (inotify_add_watch(t->inotify, spec->path, IN_MODIFY) < 0)
        rc = err_set(err, MUSTER_EIO,
                     "cannot follow %s: inotify: %s\nThe number of files is limited "
                     "by /proc/sys/fs/inotify/max_user_watches.",
                     spec->path, strerror(errno));
    if (rc != 0) {
        if (f->fd >= 0)
            close(f->fd);
        mem_free(f->name);
        mem_free(f->prefix);
        mem_free(f);
        return rc;
    }
    f->copy_fd = spec->copy_fd;
    f->is_stderr = spec->is_stderr;
    tee_init(&f->tee, span_of(f->prefix, spec->prefix.n), spec->needles,
             spec->needle_count);
    f->next = t->list;
    t->list = f;
    watch(t);
    return 0;
}

void tails_drain(struct tails *t, void (*cb)(void *ctx), void *ctx)
{
    t->drained = cb;
    t->drained_ctx = ctx;
    if (t->watching)
        uv_poll_stop(&t->events);
    t->watching = false;
    uv_timer_start(&t->timer, on_timer, 0, 0);
}

static void free_after_last(struct tails *t)
{
    if (--t->closing > 0)
        return;
    mem_free(t->chunk);
    mem_free(t);
}

static void on_closed(uv_handle_t *h)
{
    free_after_last(h->data);
}

static void on_console_closed(uv_handle_t *h)
{
    const struct console *c = h->data;
    free_after_last(c->ctx);
}

void tails_close(struct tails *t)
{
    if (!t)
        return;
    forget_files(t);
    t->closing = 2;
    t->closing += console_close(&t->out[0], on_console_closed);
    t->closing += console_close(&t->out[1], on_console_closed);
    buf_fini(&t->copy);
    uv_close((uv_handle_t *)&t->timer, on_closed);
    uv_close((uv_handle_t *)&t->events, on_closed);
    close(t->inotify);
}
