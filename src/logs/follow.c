/* follow.c - see follow.h. What becomes of one file is in follow_file.c. */
#include "logs/follow.h"

#include <errno.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "logs/follow_int.h"

#define BUSY_MS 5   /* between looks while output keeps coming */
#define LOOK_MS 100 /* between looks without inotify: as often as torch's poll */

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
    int closing; /* handles yet to close */
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
    struct tail_file *f;
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

static void free_after_last(struct tails *t)
{
    if (--t->closing > 0)
        return;
    mem_free(t->common.chunk);
    mem_free(t);
}

static void follow_on_closed(uv_handle_t *h)
{
    free_after_last(h->data);
}

static void follow_on_console_closed(uv_handle_t *h)
{
    const struct console *c = h->data;
    free_after_last(c->ctx);
}

void tails_close(struct tails *t)
{
    if (!t)
        return;
    forget_files(t);
    t->closing = 1 + (t->inotify >= 0);
    t->closing += console_close(&t->out[0], follow_on_console_closed);
    t->closing += console_close(&t->out[1], follow_on_console_closed);
    buf_fini(&t->common.copy);
    uv_close((uv_handle_t *)&t->timer, follow_on_closed);
    if (t->inotify < 0)
        return;
    uv_close((uv_handle_t *)&t->events, follow_on_closed);
    close(t->inotify);
}
