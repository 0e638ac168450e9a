/* reader.c - see reader.h. The agent's side: forks the reader, takes what it prints,
 * ends it when the time is up. */
#include "stacks/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "loop/file.h"
#include "loop/handle_set.h"
#include "process/proc.h"
#include "stacks/core/sample.h"

#define REAP_MS 20 /* between two looks at a reader that has not quite gone */

struct stacks_reading {
    uv_pipe_t pipe;
    uv_timer_t timer; /* first the deadline, then the reaping */
    struct handle_set closing;
    struct buf out;
    pid_t pid;
    bool notified;
    void (*done)(void *ctx, int status, struct span json,
                 const struct muster_error *err);
    void *ctx;
    char chunk[16384];
};

/* --- the reader's process --------------------------------------------------------- */

static void reader_put(void *ctx, struct span text)
{
    (void)file_write_all(*(int *)ctx, text);
}

static void be_reader(const struct stacks_read_opts *opts, int fd, pid_t agent)
    __attribute__((noreturn));

static void be_reader(const struct stacks_read_opts *opts, int fd, pid_t agent)
{
    sigset_t none;
    int out = 3;

    setpgid(0, 0); /* So that it and all it started can be killed at once. */
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != agent)
        _exit(1);
    prctl(PR_SET_NAME, "muster-stacks", 0, 0, 0);
    for (int sig = 1; sig < NSIG; sig++)
        signal(sig, SIG_DFL);
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    (void)dup2(fd, out);
    proc_close_range(4, ~0U);
    (void)stacks_collect(opts, reader_put, &out);
    _exit(0);
}

/* --- the agent's side ------------------------------------------------------------- */

static void on_all_closed(void *ctx)
{
    struct stacks_reading *r = ctx;

    buf_fini(&r->out);
    mem_free(r);
}

/* The reader is dead or about to be. What it started is in its process group and
 * becomes our child when the reader goes, so that everything is reaped. */
static void reap(uv_timer_t *timer)
{
    struct stacks_reading *r = timer->data;
    pid_t pid;

    do
        pid = waitpid(-r->pid, NULL, WNOHANG);
    while (pid > 0);
    if (pid == 0)
        return; /* again in a moment */
    handle_set_close(&r->closing, &r->timer);
    handle_set_end(&r->closing);
}

static void reading_end(struct stacks_reading *r)
{
    if (uv_is_closing((uv_handle_t *)&r->pipe))
        return;
    kill(-r->pid, SIGKILL);
    handle_set_begin(&r->closing, on_all_closed, r);
    handle_set_close(&r->closing, &r->pipe);
    uv_timer_start(&r->timer, reap, 1, REAP_MS);
}

/* The last whole line: the fullest account that came in time. */
static struct span last_line(const struct buf *b)
{
    const uint8_t *p = buf_data(b);
    size_t end = buf_len(b), begin;

    while (end > 0 && p[end - 1] != '\n')
        end--;
    begin = end > 0 ? end - 1 : 0;
    while (begin > 0 && p[begin - 1] != '\n')
        begin--;
    return span_of(end > 0 ? p + begin : NULL, end > begin ? end - 1 - begin : 0);
}

static void reading_notify(struct stacks_reading *r, const struct muster_error *why)
{
    const struct span line = last_line(&r->out);

    if (r->notified)
        return;
    r->notified = true;
    r->done(r->ctx, line.n > 0 ? 0 : why->code, line, why);
}

static void reader_on_deadline(uv_timer_t *timer)
{
    struct stacks_reading *r = timer->data;
    struct muster_error err;

    err_set(&err, MUSTER_ETIMEDOUT, "reading the stacks took too long");
    reading_notify(r, &err);
    reading_end(r);
}

static void reader_on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
    struct stacks_reading *r = h->data;

    (void)suggested;
    *buf = uv_buf_init(r->chunk, sizeof r->chunk);
}

static void reader_on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct stacks_reading *r = stream->data;
    struct muster_error err;

    if (n > 0 && buf_append(&r->out, buf->base, (size_t)n) == 0)
        return;
    if (n == 0)
        return;
    if (n > 0)
        err_set(&err, MUSTER_EFULL, "the stacks take more than %u bytes",
                STACK_NODE_BYTES);
    else
        err_set(&err, MUSTER_EIO, "the reader of stacks ended without a result");
    reading_notify(r, &err);
    reading_end(r);
}

static int reader_start(struct stacks_reading *r, const struct stacks_read_opts *opts,
                        struct muster_error *err)
{
    const pid_t agent = getpid();
    int fds[2];

    if (pipe2(fds, O_CLOEXEC) < 0)
        return err_set(err, MUSTER_EIO, "reading stacks: %s", strerror(errno));
    r->pid = fork();
    if (r->pid == 0)
        be_reader(opts, fds[1], agent);
    close(fds[1]);
    if (r->pid < 0) {
        close(fds[0]);
        return err_set(err, MUSTER_EIO, "reading stacks: %s", strerror(errno));
    }
    setpgid(r->pid,
            r->pid); /* On both sides, since the reader may be killed before it runs. */
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
    (void)uv_pipe_init(opts->loop, &r->pipe, 0);
    (void)uv_timer_init(opts->loop, &r->timer);
    r->pipe.data = r->timer.data = r;
    (void)uv_pipe_open(&r->pipe, fds[0]);
    (void)uv_read_start((uv_stream_t *)&r->pipe, reader_on_alloc, reader_on_read);
    (void)uv_timer_start(&r->timer, reader_on_deadline, opts->timeout_ms, 0);
    return 0;
}

int stacks_read(const struct stacks_read_opts *opts, struct stacks_reading **out,
                struct muster_error *err)
{
    struct stacks_reading *r = mem_calloc(1, sizeof *r);

    if (!r)
        return err_nomem(err);
    r->done = opts->done;
    r->ctx = opts->ctx;
    buf_init(&r->out, 8 * STACK_NODE_BYTES);
    const int rc = reader_start(r, opts, err);
    if (rc != 0) {
        mem_free(r);
        return rc;
    }
    *out = r;
    return 0;
}

void stacks_read_cancel(struct stacks_reading *r)
{
    if (!r)
        return;
    r->notified = true;
    reading_end(r);
}
