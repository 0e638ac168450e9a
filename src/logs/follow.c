/* follow.c - see follow.h. First what becomes of one file, then how each gets its turn.
 */
#include "logs/follow.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "logs/console.h"
#include "logs/core/prefix_lines.h"

#define BUSY_MS    5   /* between looks while output keeps coming */
#define LOOK_MS    100 /* between looks without inotify: as often as torch's poll */
#define TAIL_CHUNK (64u << 10)
#define TURN       (1u << 20) /* read from one file before others get their turn */
#define CHUNKS_MAX (TURN / TAIL_CHUNK)
/* An unfinished line is shown after this, as torch's poll does. */
#define PARTIAL_MS 100

struct tail_file {
    struct tail_file *next;
    int fd;
    int copy_fd;             /* borrowed; -1: none, or it cannot be written any more */
    char *name;              /* owned */
    char *prefix;            /* owned */
    struct console *console; /* borrowed: where it is shown */
    bool given_up;           /* it cannot be read, or nobody is left to read it for */
    bool notified;           /* that its console is broken */
    struct tee tee;
    uint64_t partial_since; /* loop time of the first byte of an unfinished line */
};

/* What all files of a struct tails share. */
struct tail_common {
    struct tails_opts opts;
    struct buf copy; /* lines for the filter file, until they are written */
    uint8_t *chunk;  /* owned, TAIL_CHUNK bytes */
};

/* --- one file --------------------------------------------------------------------- */

static void tail_file_free(struct tail_file *f)
{
    if (f->fd >= 0)
        close(f->fd);
    tee_fini(&f->tee);
    mem_free(f->name);
    mem_free(f->prefix);
    mem_free(f);
}

static int tail_file_new(const struct tail_spec *spec, struct console *console,
                         struct tail_file **out, struct muster_error *err)
{
    struct tail_file *f = mem_calloc(1, sizeof *f);
    int rc = 0;

    if (!f)
        return err_nomem(err);
    f->fd = open(spec->path, O_RDONLY | O_CLOEXEC);
    if (f->fd < 0)
        rc = err_set(err, MUSTER_EIO, "%s: %s", spec->path, strerror(errno));
    f->name = mem_strdup(spec->name);
    f->prefix = mem_strndup((const char *)spec->prefix.p, spec->prefix.n);
    if (rc == 0 && (!f->name || !f->prefix))
        rc = err_nomem(err);
    if (rc != 0) {
        tail_file_free(f);
        return rc;
    }
    f->copy_fd = spec->copy_fd;
    f->console = console;
    tee_init(&f->tee, span_of(f->prefix, spec->prefix.n), spec->needles,
             spec->needle_count);
    *out = f;
    return 0;
}

static void tail_file_give_up(struct tail_common *s, struct tail_file *f, int errnum)
{
    if (f->given_up)
        return;
    f->given_up = true;
    s->opts.on_error(s->opts.ctx, f->name, errnum);
}

/* Like torchrun, whose console and filter file have a reader each, go on for the one
 * while the other is gone. */
static void see_who_is_left(struct tail_common *s, struct tail_file *f)
{
    const int broken = f->console->broken;

    if (!broken)
        return;
    if (!f->notified)
        s->opts.on_error(s->opts.ctx, f->name, broken);
    f->notified = true;
    if (f->copy_fd < 0)
        f->given_up = true;
}

static void write_copy(struct tail_common *s, struct tail_file *f)
{
    while (buf_len(&s->copy) > 0 && f->copy_fd >= 0) {
        const ssize_t n = write(f->copy_fd, buf_data(&s->copy), buf_len(&s->copy));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            f->copy_fd = -1;
            s->opts.on_error(s->opts.ctx, f->name, errno);
            break;
        }
        buf_consume(&s->copy, (size_t)n);
    }
    buf_clear(&s->copy);
}

/* Reads what is new, up to a turn's worth; *any: something was. True if there may be
 * more, be it that the turn is over or that the console is full. */
static bool tail_file_read(struct tail_common *s, struct tail_file *f, bool *any)
{
    struct console *c = f->console;

    for (unsigned i = 0; i < CHUNKS_MAX; i++) {
        see_who_is_left(s, f);
        if (f->given_up)
            return false;
        if (console_full(c)) {
            console_flush(c); /* It may have room by now, or break: that empties it. */
            if (console_full(c))
                return true;
        }
        const ssize_t n = read(f->fd, s->chunk, TAIL_CHUNK);
        if (n == 0)
            return false;
        if (n < 0) {
            tail_file_give_up(s, f, errno);
            return false;
        }
        if (tee_feed(&f->tee, span_of(s->chunk, (size_t)n), &c->out, &s->copy) != 0)
            tail_file_give_up(s, f, ENOMEM);
        write_copy(s, f);
        if (f->tee.fresh) /* A line that grows and grows is shown in time, too. */
            f->partial_since = 0;
        *any = true;
    }
    return !f->given_up;
}

/* A line that has been unfinished for a while (or, with now, at all) is shown as it is.
 * Returns how long until that is due, or 0 if nothing is held. Only for a file that is
 * read to its end: else the rest of the line may be there. */
static uint64_t tail_file_settle(struct tail_common *s, struct tail_file *f, bool now)
{
    const uint64_t time = uv_now(s->opts.loop);

    if (!tee_holds(&f->tee) || f->given_up)
        return 0;
    if (f->partial_since == 0)
        f->partial_since = MAX_OF(time, 1);
    if (!now && time < f->partial_since + PARTIAL_MS)
        return f->partial_since + PARTIAL_MS - time;
    tee_flush(&f->tee, &f->console->out, &s->copy);
    write_copy(s, f);
    f->partial_since = 0;
    return 0;
}

/* --- all of them ------------------------------------------------------------------ */

struct tails {
    struct tail_common common;
    struct tail_file *list;
    int inotify; /* -1: none */
    uv_poll_t events;
    uv_timer_t timer;
    bool watching; /* waiting for an event; else the timer looks */
    bool blind;    /* no event tells of every file: the timer looks, always */
    struct console out[2];
    void (*drained)(void *ctx);
    void *drained_ctx;
    struct handle_set closing;
};

static void tails_look(struct tails *t);

static void follow_on_console_ready(void *ctx)
{
    tails_look(ctx);
}

/* --- taking turns ----------------------------------------------------------------- */

static void follow_on_timer(uv_timer_t *timer)
{
    tails_look(timer->data);
}

static void tails_unwatch(struct tails *t)
{
    if (t->watching)
        uv_poll_stop(&t->events);
    t->watching = false;
}

static void follow_on_event(uv_poll_t *poll, int status, int events)
{
    struct tails *t = poll->data;
    char skipped[4096];

    (void)status;
    (void)events;
    tails_unwatch(t);
    while (read(t->inotify, skipped, sizeof skipped) > 0)
        ; /* Which file it was matters little: all are looked at. */
    tails_look(t);
}

static void forget_files(struct tails *t)
{
    while (t->list) {
        struct tail_file *f = t->list;
        t->list = f->next;
        tail_file_free(f);
    }
}

static void follow_on_drained(uv_timer_t *timer)
{
    struct tails *t = timer->data;
    void (*cb)(void *) = t->drained;

    t->drained = NULL;
    forget_files(t);
    if (cb)
        cb(t->drained_ctx);
}

/* All files are read to their ends: is everything printed, or past help? */
static bool all_shown(struct tails *t)
{
    for (struct tail_file *f = t->list; f; f = f->next)
        tail_file_settle(&t->common, f, true);
    console_flush(&t->out[0]);
    console_flush(&t->out[1]);
    return console_empty(&t->out[0]) && console_empty(&t->out[1]);
}

/* Not while a console is full: each write that it holds up would be an event. */
static void tails_watch(struct tails *t)
{
    if (t->watching)
        return;
    t->watching = true;
    uv_poll_start(&t->events, UV_READABLE, follow_on_event);
}

/* What a turn of all files has shown. */
struct turn {
    bool any;           /* something was read */
    bool left[2];       /* a file of this console may have more */
    bool open;          /* there is a file whose console has room */
    uint64_t settle_ms; /* until an unfinished line is due; 0: none */
};

static struct turn tails_take_turn(struct tails *t)
{
    struct turn now = { 0 };

    for (struct tail_file *f = t->list; f; f = f->next) {
        if (tail_file_read(&t->common, f, &now.any)) {
            now.left[f->console == &t->out[1]] = true;
            continue;
        }
        const uint64_t due = tail_file_settle(&t->common, f, false);
        if (due && (now.settle_ms == 0 || due < now.settle_ms))
            now.settle_ms = due;
    }
    console_flush(&t->out[0]);
    console_flush(&t->out[1]);
    for (struct tail_file *f = t->list; f; f = f->next)
        now.open |= !console_full(f->console);
    return now;
}

static void tails_look_in(struct tails *t, uint64_t ms)
{
    uv_timer_start(&t->timer, follow_on_timer, ms, 0);
}

/* One turn for every file, then decide when to look again. A full console wakes us
 * when it has room, and holds up nothing but its own files. */
static void tails_look(struct tails *t)
{
    uv_update_time(t->common.opts.loop);
    const struct turn now = tails_take_turn(t);
    const bool full[] = { console_full(&t->out[0]), console_full(&t->out[1]) };
    const bool more = (now.left[0] && !full[0]) || (now.left[1] && !full[1]);

    if (t->drained && !now.left[0] && !now.left[1] && all_shown(t))
        uv_timer_start(&t->timer, follow_on_drained, 0, 0);
    else if (more)
        tails_look_in(t, 1); /* Not 0: libuv would call us again before all else. */
    else if (!now.open)
        uv_timer_stop(&t->timer);
    else if (now.any)
        tails_look_in(t, BUSY_MS);
    else if (t->drained || t->blind || full[0] || full[1])
        tails_look_in(t, now.settle_ms ? now.settle_ms : LOOK_MS);
    else {
        tails_watch(t); /* What was written since the read is in the event queue. */
        if (now.settle_ms)
            tails_look_in(t, now.settle_ms);
        else
            uv_timer_stop(&t->timer);
    }
}

/* --- open, add, drain, close ------------------------------------------------------ */

/* Without inotify a job runs all the same: its output only comes a bit later. */
static void go_blind(struct tails *t, int errnum)
{
    const struct tails_opts *o = &t->common.opts;

    if (t->blind)
        return;
    t->blind = true;
    tails_unwatch(t);
    o->on_blind(o->ctx, LOOK_MS, errnum);
}

static void open_inotify(struct tails *t)
{
    t->inotify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (t->inotify < 0) {
        go_blind(t, errno);
        return;
    }
    const int rc = uv_poll_init(t->common.opts.loop, &t->events, t->inotify);
    if (rc != 0) { /* Then there is no handle to close. */
        close(t->inotify);
        t->inotify = -1;
        go_blind(t, -rc);
    }
    t->events.data = t;
}

int tails_open(const struct tails_opts *opts, struct tails **out,
               struct muster_error *err)
{
    struct tails *t = mem_calloc(1, sizeof *t);
    uint8_t *chunk = mem_alloc(TAIL_CHUNK);

    if (!t || !chunk) {
        mem_free(t);
        mem_free(chunk);
        return err_nomem(err);
    }
    t->common = (struct tail_common){ .opts = *opts, .chunk = chunk };
    buf_init(&t->common.copy, SIZE_MAX);
    open_inotify(t);
    console_open(&t->out[0], opts->loop, STDOUT_FILENO, follow_on_console_ready, t);
    console_open(&t->out[1], opts->loop, STDERR_FILENO, follow_on_console_ready, t);
    uv_timer_init(opts->loop, &t->timer);
    t->timer.data = t;
    *out = t;
    return 0;
}

int tails_add(struct tails *t, const struct tail_spec *spec, struct muster_error *err)
{
    struct tail_file *f = NULL;
    const int rc = tail_file_new(spec, &t->out[spec->is_stderr], &f, err);

    if (rc != 0)
        return rc;
    if (!t->blind && inotify_add_watch(t->inotify, spec->path, IN_MODIFY) < 0)
        go_blind(t, errno);
    f->next = t->list;
    t->list = f;
    if (!t->blind)
        tails_watch(t);
    else if (!uv_is_active((uv_handle_t *)&t->timer))
        tails_look_in(t, LOOK_MS);
    return 0;
}

void tails_drain(struct tails *t, void (*cb)(void *ctx), void *ctx)
{
    t->drained = cb;
    t->drained_ctx = ctx;
    tails_unwatch(t);
    tails_look_in(t, 0);
}

static void tails_free(void *tails)
{
    struct tails *t = tails;

    mem_free(t->common.chunk);
    mem_free(t);
}

void tails_close(struct tails *t)
{
    if (!t)
        return;
    forget_files(t);
    buf_fini(&t->common.copy);
    handle_set_begin(&t->closing, tails_free, t);
    console_close(&t->out[0], &t->closing);
    console_close(&t->out[1], &t->closing);
    handle_set_close(&t->closing, &t->timer);
    if (t->inotify >= 0) {
        handle_set_close(&t->closing, &t->events);
        close(t->inotify);
    }
    handle_set_end(&t->closing);
}
