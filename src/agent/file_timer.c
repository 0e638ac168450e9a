/* file_timer.c - see file_timer.h. */
#include "agent/file_timer.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"

struct watchdog {
    struct watchdog_opts opts;
    char *path; /* owned */
    int fd;
    struct timers timers;
    uv_poll_t poll;
    uv_timer_t timer;
    int closing;
};

static double wall_seconds(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void file_timer_on_timer(uv_timer_t *timer);

/* Deadlines are wall-clock times, which may be set: looked at once a minute at
 * least. */
static void watchdog_arm(struct watchdog *w)
{
    const double left = timers_next(&w->timers) - wall_seconds();

    if (isinf(left))
        uv_timer_stop(&w->timer);
    else
        uv_timer_start(&w->timer, file_timer_on_timer,
                       (uint64_t)(MIN_OF(MAX_OF(left, 0.0), 60.0) * 1000) + 1, 0);
}

static void file_timer_on_timer(uv_timer_t *timer)
{
    struct watchdog *w = timer->data;
    struct timer_entry e;

    while (timers_expire(&w->timers, wall_seconds(), &e)) {
        w->opts.on_expired(w->opts.ctx, &e);
        mem_free(e.scope);
    }
    watchdog_arm(w);
}

static void file_timer_on_readable(uv_poll_t *poll, int status, int events)
{
    struct watchdog *w = poll->data;
    uint8_t bytes[4096];
    ssize_t n;

    (void)status;
    (void)events;
    while ((n = read(w->fd, bytes, sizeof bytes)) > 0) {
        struct muster_error err = { 0 };
        if (timers_feed(&w->timers, span_of(bytes, (size_t)n), &err) != 0)
            w->opts.on_nonsense(w->opts.ctx, &err);
    }
    watchdog_arm(w);
}

int watchdog_open(const struct watchdog_opts *opts, struct watchdog **out,
                  struct muster_error *err)
{
    struct watchdog *w = mem_calloc(1, sizeof *w);
    char *path = mem_strdup(opts->path);

    if (!w || !path) {
        mem_free(w);
        mem_free(path);
        return err_nomem(err);
    }
    unlink(path);
    int fd = -1;
    /* Open for writing too: then it never reads as ended while no worker has it
     * open. */
    if (mkfifo(path, 0600) == 0) /* Who writes to it can have workers killed. */
        fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
        const int errnum = errno;
        err_set(err, MUSTER_EIO,
                "the file timer's FIFO cannot be made: %s: %s\nSet "
                "TORCHELASTIC_TIMER_FILE to a path that can be written.",
                path, strerror(errnum));
        mem_free(w);
        mem_free(path);
        return MUSTER_EIO;
    }
    *w = (struct watchdog){ .opts = *opts, .path = path, .fd = fd };
    timers_init(&w->timers);
    uv_timer_init(opts->loop, &w->timer);
    uv_poll_init(opts->loop, &w->poll, fd);
    w->timer.data = w->poll.data = w;
    uv_poll_start(&w->poll, UV_READABLE, file_timer_on_readable);
    *out = w;
    return 0;
}

static void file_timer_on_closed(uv_handle_t *h)
{
    struct watchdog *w = h->data;

    if (--w->closing > 0)
        return;
    timers_fini(&w->timers);
    mem_free(w->path);
    mem_free(w);
}

void watchdog_close(struct watchdog *w)
{
    if (!w)
        return;
    unlink(w->path);
    w->closing = 2;
    uv_close((uv_handle_t *)&w->poll, file_timer_on_closed);
    uv_close((uv_handle_t *)&w->timer, file_timer_on_closed);
    close(w->fd);
}
