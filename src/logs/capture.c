/* capture.c - see capture.h.
 *
 *     worker's stderr --pipe or pty--> stream --splice, tee or write--> our stderr
 *                                        |
 *                                        '--> ring of the last LAST_WORDS_BYTES
 *
 * One stream for each worker of an attempt (captures_worker), read when it has
 * something and the console takes more. Whatever is read is shown at once and
 * remembered: the ring has the worker's last words when it fails. captures_drain()
 * reads all streams to their ends after the workers are gone; captures_reset() drops
 * them for the next attempt.
 *
 * Rules, and why:
 *  - The loop never blocks on the console, or heartbeats would stop with it. A console
 *    that takes nothing more pauses the streams; then the worker waits for its reader,
 * as it would without us in between.
 *  - A flood costs no copies: from pipe to pipe in the kernel, and only its end is
 * looked at. A flood of short lines is let gather for REST_MS, where the pipe has the
 * room.
 *  - No stream starves: each has READS reads, then the next has its turn.
 *  - When the console breaks (`| head` has ended), a worker whose stdout it was is hung
 *    up on, so that it gets SIGPIPE as it would have. Words go on to be remembered.
 *  - A worker that leaves a child with its stderr open does not hold up the end:
 * draining takes what is there and does not wait for the last writer.
 *  - What fails here costs last words, never the job: without a pipe, a pty or memory
 * the worker inherits our stderr. */
#include "logs/capture.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "logs/console.h"
#include "logs/core/last_words.h"
#include "loop/defer.h"

#define CHUNK (64u << 10)
#define FLOOD (48 << 10) /* bytes at once of which only the last are looked at */
#define ROOM  (1 << 20)
#define READS 4 /* of one worker, then the others have their turn */
/* A flood of short lines would wake us for each of them. After so many looks in one
 * millisecond that found little, we let what comes gather for REST_MS. */
#define LOOKS   8
#define LITTLE  (16u << 10)
#define REST_MS 2u

struct stream {
    struct captures *all;
    uv_poll_t poll;
    int fd;         /* our end; open for as long as the handle is, see stream_end */
    bool ended;     /* nobody has the other end any more */
    bool terminal;  /* a pty's master */
    bool both;      /* stdout, too */
    bool paused;    /* the console is slow */
    bool grown;     /* the pipe has the room for a flood */
    bool rests;     /* until the timer */
    unsigned looks; /* in the millisecond looked_ms that found little */
    uint64_t looked_ms;
    size_t taken;  /* by this look */
    uint8_t *tail; /* owned; a ring of LAST_WORDS_BYTES, from the first byte on */
    size_t at, kept;
    int64_t traceback_us;
    struct stream *next; /* in `closing` */
};

struct captures {
    uv_loop_t *loop;
    struct stream **streams; /* owned, one a worker; NULL: not captured */
    size_t count;
    struct console console;
    bool opened;
    size_t turn;                 /* the next of those that wait for the console */
    bool stuck;                  /* the console's pipe took nothing more */
    bool grown;                  /* and has the room for a flood */
    bool fifo;                   /* stderr is a pipe */
    bool err_is_terminal, piped; /* what 2 is */
    bool one;                    /* 1 and 2 are the same terminal, pipe or socket */
    uint8_t *chunk;              /* owned; what is read lands here first */
    uint8_t *flat;               /* owned; a ring laid out straight */
    uv_timer_t rest;
    uv_signal_t winch;
    bool watches_size;
    struct defer defer;
    bool draining;
    void (*drained)(void *ctx);
    void *drained_ctx;
    struct handle_set
        handles; /* open until the last of streams and handles is closed */
};

/* ---- one stream ---- */

static int64_t wall_us(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_REALTIME, &ts);
    return ts.tv_sec * 1000000LL + ts.tv_nsec / 1000;
}

static void stream_remember(struct stream *s, struct span bytes)
{
    if (last_words_has_traceback(bytes)) /* Of late output only the end matters. */
        s->traceback_us = wall_us();
    if (!s->tail)
        s->tail = mem_alloc(LAST_WORDS_BYTES);
    if (!s->tail)
        return;
    if (bytes.n > LAST_WORDS_BYTES)
        bytes = span_of(bytes.p + bytes.n - LAST_WORDS_BYTES, LAST_WORDS_BYTES);
    const size_t first = MIN_OF(bytes.n, LAST_WORDS_BYTES - s->at);
    memcpy(s->tail + s->at, bytes.p, first);
    memcpy(s->tail, bytes.p + first, bytes.n - first);
    s->at = (s->at + bytes.n) % LAST_WORDS_BYTES;
    s->kept = MIN_OF(s->kept + bytes.n, LAST_WORDS_BYTES);
}

/* The descriptor stays open: uv_close() forgets its number, too, and would forget
 * whatever else has got that number by then. */
static void stream_end(struct stream *s)
{
    s->ended = true;
    (void)uv_poll_stop(&s->poll);
}

/* Nobody will read it, and the worker should notice, as it would without us in between
 * (`| head`). */
static void stream_hang_up(struct stream *s)
{
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);

    stream_end(s);
    if (null >= 0) {
        (void)dup3(null, s->fd, O_CLOEXEC);
        (void)close(null);
    }
}

/* Most often nothing waits: straight from where it was read to the console. */
static void stream_show(struct captures *c, struct span bytes)
{
    if (c->console.broken)
        return;
    if (console_empty(&c->console)) {
        const ssize_t n = c->console.own ? write(c->console.fd, bytes.p, bytes.n) : -1;
        if (n > 0)
            bytes = span_of(bytes.p + n, bytes.n - (size_t)n);
    }
    if (bytes.n == 0)
        return;
    (void)buf_append_span(&c->console.out, bytes);
    console_flush(&c->console);
}

/* Room for a flood, asked for when one comes: a pipe of this size for every worker
 * would use up what the kernel grants a user (fs.pipe-user-pages-soft) for nothing. */
static void grow_pipe(int fd, bool *grown)
{
    if (!*grown)
        (void)fcntl(fd, F_SETPIPE_SZ, ROOM);
    *grown = true;
}

/* From pipe to pipe in the kernel. Of a flood only the end is looked at; whatever is
 * looked at is shown first, without a copy. Returns how much of what is there has been
 * shown and is to be read, 0 for "look again", or -1: read it, then show it. */
static ssize_t stream_pass_on(struct stream *s)
{
    struct captures *c = s->all;
    int there = 0;

    if (s->terminal || !c->fifo || !c->console.own || !console_empty(&c->console) ||
        ioctl(s->fd, FIONREAD, &there) < 0 || there == 0)
        return -1;
    const bool flood = there > FLOOD;
    if (flood) {
        grow_pipe(s->fd, &s->grown);
        grow_pipe(c->console.fd, &c->grown);
    }
    const size_t want = flood ? (size_t)there - LAST_WORDS_BYTES : (size_t)there;
    const ssize_t n = flood ? splice(s->fd, NULL, c->console.fd, NULL, want,
                                     SPLICE_F_MOVE | SPLICE_F_NONBLOCK)
                            : tee(s->fd, c->console.fd, want, SPLICE_F_NONBLOCK);
    if (n < 0 && errno != EAGAIN)
        return -1; /* An error of the console shows when it is written to. */
    if (n < (ssize_t)want) {
        console_want(&c->console);
        c->stuck = !c->console.broken;
    }
    if (n > 0 && flood) {
        s->taken += (size_t)n;
        s->at = s->kept = 0; /* What was remembered is not the end any more. */
    }
    return n > 0 && !flood ? n : 0;
}

static bool console_blocks(const struct captures *c)
{
    return c->stuck || console_full(&c->console);
}

/* Takes what is there. False: no more for now, or for ever. */
static bool stream_read(struct stream *s)
{
    struct captures *c = s->all;
    const ssize_t shown = stream_pass_on(s);

    if (shown == 0)
        return true;
    const ssize_t n = read(s->fd, c->chunk, shown > 0 ? (size_t)shown : CHUNK);
    if (n < 0 && errno == EINTR)
        return true;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return false;
    if (n <= 0) { /* A pty tells with EIO that nobody has the other end. */
        stream_end(s);
        return false;
    }
    s->taken += (size_t)n;
    stream_remember(s, span_of(c->chunk, (size_t)n));
    if (shown < 0)
        stream_show(c, span_of(c->chunk, (size_t)n));
    if (c->console.broken && s->both && !s->terminal)
        stream_hang_up(s);
    return !s->ended;
}

static void stream_read_on(struct stream *s)
{
    for (int i = 0; i < READS && !console_blocks(s->all) && stream_read(s); i++)
        ;
}

/* Whether we look too often at what comes in small pieces. Only where the pipe has room
 * for what will gather: nobody shall wait because we rest. */
static bool stream_may_rest(struct stream *s)
{
    const uint64_t now = uv_now(s->all->loop);

    if (s->looked_ms != now || s->taken >= LITTLE)
        s->looks = 0;
    s->looked_ms = now;
    if (s->terminal || ++s->looks < LOOKS)
        return false;
    grow_pipe(s->fd, &s->grown);
    return fcntl(s->fd, F_GETPIPE_SZ) >= ROOM;
}

static void on_stream(uv_poll_t *poll, int status, int events);

static void on_rested(uv_timer_t *timer)
{
    struct captures *c = timer->data;

    for (size_t i = 0; i < c->count; i++) {
        struct stream *s = c->streams[i];

        if (!s || !s->rests)
            continue;
        s->rests = false;
        if (!s->ended)
            (void)uv_poll_start(&s->poll, UV_READABLE, on_stream);
    }
}

static void on_stream(uv_poll_t *poll, int status, int events)
{
    struct stream *s = poll->data;
    struct captures *c = s->all;

    (void)status;
    (void)events;
    s->taken = 0;
    stream_read_on(s);
    if (s->ended)
        return;
    s->paused = console_blocks(c);
    s->rests = !s->paused && stream_may_rest(s);
    if (s->paused || s->rests)
        (void)uv_poll_stop(poll);
    if (s->rests && !uv_is_active((uv_handle_t *)&c->rest))
        (void)uv_timer_start(&c->rest, on_rested, REST_MS, 0);
}

/* ---- the console ---- */

static void drain_on(struct captures *c)
{
    bool more = false;

    for (size_t i = 0; i < c->count; i++) {
        struct stream *s = c->streams[i];

        if (!s || s->ended)
            continue;
        while (!console_blocks(c) && stream_read(s))
            ;
        more = more || (!s->ended && console_blocks(c));
    }
    if (more || (!console_empty(&c->console) && !c->console.broken))
        return; /* Once more when there is room. */
    c->draining = false;
    c->drained(c->drained_ctx);
}

static void capture_on_console_ready(void *ctx)
{
    struct captures *c = ctx;

    c->stuck = false;
    if (c->draining) {
        drain_on(c);
        return;
    }
    for (size_t i = 0; i < c->count && !console_blocks(c); i++) {
        struct stream *s = c->streams[c->turn];

        c->turn = (c->turn + 1) % c->count;
        if (!s || !s->paused || s->ended)
            continue;
        stream_read_on(s);
        if (!s->ended && !console_blocks(c)) {
            s->paused = false;
            (void)uv_poll_start(&s->poll, UV_READABLE, on_stream);
        }
    }
}

static void capture_on_deferred(void *ctx)
{
    struct captures *c = ctx;

    if (c->draining)
        drain_on(c);
}

/* ---- a terminal ---- */

static void on_window(uv_signal_t *handle, int sig)
{
    struct captures *c = handle->data;
    struct winsize size;

    (void)sig;
    if (ioctl(2, TIOCGWINSZ, &size) < 0)
        return;
    for (size_t i = 0; i < c->count; i++)
        if (c->streams[i] && c->streams[i]->terminal && !c->streams[i]->ended)
            (void)ioctl(c->streams[i]->fd, TIOCSWINSZ, &size);
}

/* Bytes go through as they are: the real terminal does with them what it always did. */
static int open_terminal(struct captures *c, int *worker_end)
{
    struct winsize size;
    struct termios how;
    const int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
    char name[64];

    if (master < 0)
        return -1;
    *worker_end = -1;
    if (grantpt(master) == 0 && unlockpt(master) == 0 &&
        ptsname_r(master, name, sizeof name) == 0)
        *worker_end = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (*worker_end < 0) {
        (void)close(master);
        return -1;
    }
    if (tcgetattr(2, &how) == 0) {
        how.c_oflag &= (tcflag_t)~OPOST;
        how.c_lflag &= (tcflag_t) ~(ECHO | ICANON | ISIG);
        (void)tcsetattr(*worker_end, TCSANOW, &how);
    }
    if (ioctl(2, TIOCGWINSZ, &size) == 0)
        (void)ioctl(*worker_end, TIOCSWINSZ, &size);
    if (!c->watches_size) {
        c->watches_size = true;
        (void)uv_signal_start(&c->winch, on_window, SIGWINCH);
        uv_unref((uv_handle_t *)&c->winch);
    }
    return master;
}

static int open_pipe(int *worker_end)
{
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) < 0)
        return -1;
    *worker_end = ends[1];
    return ends[0];
}

/* ---- all of them ---- */

static void look_at_console(struct captures *c)
{
    struct stat out, err;

    if (fstat(2, &err) < 0)
        return;
    c->fifo = S_ISFIFO(err.st_mode);
    c->piped = S_ISFIFO(err.st_mode) || S_ISSOCK(err.st_mode);
    c->err_is_terminal = isatty(2);
    if (fstat(1, &out) < 0)
        return;
    c->one = c->err_is_terminal
                 ? isatty(1) && out.st_rdev == err.st_rdev
                 : c->piped && out.st_dev == err.st_dev && out.st_ino == err.st_ino;
}

static void captures_free(void *captures)
{
    struct captures *c = captures;

    mem_free(c->streams);
    mem_free(c->chunk);
    mem_free(c->flat);
    mem_free(c);
}

int captures_open(uv_loop_t *loop, size_t workers, struct captures **out,
                  struct muster_error *err)
{
    struct captures *c = mem_calloc(1, sizeof *c);

    if (!c)
        return err_nomem(err);
    c->loop = loop;
    c->streams = mem_calloc(workers, sizeof(struct stream *));
    if (!c->streams) {
        mem_free(c);
        return err_nomem(err);
    }
    c->count = workers;
    defer_init(&c->defer, loop, capture_on_deferred, c);
    (void)uv_signal_init(loop, &c->winch);
    (void)uv_timer_init(loop, &c->rest);
    c->winch.data = c->rest.data = c;
    handle_set_begin(&c->handles, captures_free, c);
    look_at_console(c);
    *out = c;
    return 0;
}

static bool open_console(struct captures *c)
{
    if (c->opened)
        return true;
    c->chunk = mem_alloc(CHUNK);
    c->flat = mem_alloc(LAST_WORDS_BYTES);
    if (!c->chunk || !c->flat)
        return false;
    console_open(&c->console, c->loop, 2, capture_on_console_ready, c);
    c->opened = true;
    return true;
}

void captures_worker(struct captures *c, size_t worker, int *out, int *err)
{
    const bool both = c->one && *out == -1;
    struct stream *s;
    int end = -1;

    if (*err != -1 || !(c->piped || c->err_is_terminal) || !open_console(c))
        return;
    s = mem_calloc(1, sizeof *s);
    if (!s)
        return;
    s->all = c;
    s->terminal = c->err_is_terminal;
    s->both = both;
    s->fd = s->terminal ? open_terminal(c, &end) : open_pipe(&end);
    if (s->fd < 0 || uv_poll_init(c->loop, &s->poll, s->fd) != 0) {
        if (s->fd >= 0) {
            (void)close(s->fd);
            (void)close(end);
        }
        mem_free(s);
        return;
    }
    s->poll.data = s;
    handle_set_add(&c->handles);
    (void)uv_poll_start(&s->poll, UV_READABLE, on_stream);
    c->streams[worker] = s;
    *err = end;
    if (both) /* Otherwise lines could overtake each other on two ways to one reader. */
        *out = fcntl(end, F_DUPFD_CLOEXEC, 3);
}

struct span captures_tail(const struct captures *c, size_t worker,
                          int64_t *traceback_us)
{
    const struct stream *s = worker < c->count ? c->streams[worker] : NULL;

    *traceback_us = s ? s->traceback_us : 0;
    if (!s || !s->tail)
        return span_of(NULL, 0);
    if (s->kept < LAST_WORDS_BYTES)
        return span_of(s->tail, s->kept);
    memcpy(c->flat, s->tail + s->at, LAST_WORDS_BYTES - s->at);
    memcpy(c->flat + LAST_WORDS_BYTES - s->at, s->tail, s->at);
    return span_of(c->flat, LAST_WORDS_BYTES);
}

void captures_drain(struct captures *c, void (*cb)(void *ctx), void *ctx)
{
    c->draining = true;
    c->drained = cb;
    c->drained_ctx = ctx;
    defer_call(&c->defer);
}

/* ---- the end ---- */

static void on_stream_closed(uv_handle_t *h)
{
    struct stream *s = h->data;
    struct captures *c = s->all;

    mem_free(s->tail);
    mem_free(s);
    handle_set_left(&c->handles);
}

void captures_reset(struct captures *c)
{
    for (size_t i = 0; i < c->count; i++) {
        struct stream *s = c->streams[i];

        if (!s)
            continue;
        c->streams[i] = NULL;
        uv_close((uv_handle_t *)&s->poll, on_stream_closed);
        (void)close(s->fd);
    }
}

void captures_close(struct captures *c)
{
    if (!c)
        return;
    captures_reset(c);
    if (c->opened)
        console_close(&c->console, &c->handles);
    handle_set_close(&c->handles, &c->winch);
    handle_set_close(&c->handles, &c->rest);
    handle_set_close(&c->handles, &c->defer.idle);
    handle_set_end(&c->handles);
}
