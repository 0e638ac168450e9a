/* worker_results.c - what function workers return: bytes through a pipe each, kept
 * until the group has succeeded. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <unistd.h>

#include "agent/agent_int.h"
#include "base/err.h"
#include "base/mem.h"

#define ANSWER_MAX (256u << 20) /* include/muster/launch.h names it */
#define READ_MAX   65536u

/* Takes what is there. MUSTER_EFULL if that is more than a worker may return. */
static int result_read_some(struct agent_worker *w)
{
    for (;;) {
        const size_t left = ANSWER_MAX - buf_len(&w->result);
        const size_t n = left ? MIN_OF(left, READ_MAX) : 1;
        uint8_t one;
        uint8_t *room = left ? buf_room(&w->result, n) : &one;
        if (!room)
            return MUSTER_ENOMEM;
        const ssize_t got = read(w->result_fd, room, n);
        if (got <= 0)
            return 0;
        if (!left)
            return MUSTER_EFULL;
        buf_commit(&w->result, (size_t)got);
    }
}

/* We stop reading, and the worker must not block on a full pipe. */
static void refuse_result(struct agent *a, struct agent_worker *w, int why)
{
    const int64_t rank = a->range.base_rank + (w - a->workers);
    struct muster_error err;

    if (why == MUSTER_EFULL)
        err_set(&err, why,
                "rank %" PRId64 " returned more than %u MiB, the most that a function "
                "worker may return\nHave it write a large result to a file, and return "
                "the name of that.",
                rank, ANSWER_MAX >> 20);
    else
        err_set(&err, why,
                "out of memory for the result of rank %" PRId64 " (%zu bytes so far)\n"
                "Have it write a large result to a file, and return the name of that.",
                rank, buf_len(&w->result));
    agent_fail(a, &err);
    worker_result_close(w);
}

void worker_result_read(struct agent *a, int64_t i)
{
    struct agent_worker *w = &a->workers[i];
    const int rc = w->result_poll ? result_read_some(w) : 0;

    if (rc < 0)
        refuse_result(a, w, rc);
}

static void worker_results_on_readable(uv_poll_t *poll, int status, int events)
{
    struct agent *a = CONTAINER_OF(poll->loop, struct agent, loop);
    struct agent_worker *w = poll->data;

    worker_result_read(a, w - a->workers);
    if (w->result_poll && (status < 0 || (events & UV_DISCONNECT)))
        uv_poll_stop(poll);
    agent_pump(a);
}

static void worker_results_on_closed(uv_handle_t *h)
{
    mem_free(h);
}

int worker_result_open(struct agent *a, int64_t i, int *worker_end,
                       struct muster_error *err)
{
    struct agent_worker *w = &a->workers[i];
    int ends[2];

    *worker_end = -1;
    if (a->config->entry != ENTRY_FUNCTION)
        return 0;
    uv_poll_t *poll = mem_calloc(1, sizeof *poll);
    if (!poll)
        return err_nomem(err);
    if (pipe2(ends, O_CLOEXEC) < 0) {
        mem_free(poll);
        return err_set(err, MUSTER_EIO, "no pipe for a worker's result: %s",
                       strerror(errno));
    }
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    buf_init(&w->result, ANSWER_MAX);
    w->result_fd = ends[0];
    w->result_poll = poll;
    poll->data = w;
    uv_poll_init(&a->loop, poll, ends[0]);
    uv_poll_start(poll, UV_READABLE | UV_DISCONNECT, worker_results_on_readable);
    *worker_end = ends[1];
    return 0;
}

void worker_result_close(struct agent_worker *w)
{
    if (w->result_poll)
        uv_close((uv_handle_t *)w->result_poll, worker_results_on_closed);
    w->result_poll = NULL;
    if (w->result_fd > 0)
        close(w->result_fd);
    w->result_fd = -1;
    buf_fini(&w->result);
}

/* Hand over the memory itself, since there may be no room for a copy. */
static uint8_t *take_memory(struct buf *b)
{
    uint8_t *mem = b->mem;

    assert(b->head == 0); /* Nothing was consumed. */
    buf_init(b, 0);
    return mem ? mem : mem_calloc(1, 1);
}

void agent_collect_results(struct agent *a)
{
    struct agent_result *r = a->result;
    const size_t n = (size_t)a->config->nproc;

    if (a->config->entry != ENTRY_FUNCTION)
        return;
    r->results = mem_calloc(n, sizeof *r->results);
    for (size_t i = 0; r->results && i < n; i++) {
        struct buf *b = &a->workers[i].result;
        const size_t count = buf_len(b);
        r->results[i] = (struct worker_result){ a->range.base_rank + (int64_t)i,
                                                take_memory(b), count };
        r->result_count++;
    }
}
