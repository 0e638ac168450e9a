/* group_answers.c - what function workers return: bytes through a pipe each, kept until
 * the group has succeeded. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "io/group_int.h"

#define ANSWER_MAX (256u << 20)

static void read_some(struct agent_worker *w)
{
    for (;;) {
        uint8_t *room = buf_room(&w->result, 65536);
        const ssize_t n = room ? read(w->result_fd, room, 65536) : 0;
        if (n <= 0)
            return;
        buf_commit(&w->result, (size_t)n);
    }
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct agent_worker *w = poll->data;

    (void)events;
    read_some(w);
    if (status < 0 || (events & UV_DISCONNECT))
        uv_poll_stop(poll);
}

static void on_closed(uv_handle_t *h)
{
    mem_free(h);
}

int agent_answer_open(struct agent *a, int64_t i, int *worker_end,
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
    uv_poll_start(poll, UV_READABLE | UV_DISCONNECT, on_readable);
    *worker_end = ends[1];
    return 0;
}

void agent_answer_close(struct agent_worker *w)
{
    if (w->result_poll)
        uv_close((uv_handle_t *)w->result_poll, on_closed);
    w->result_poll = NULL;
    if (w->result_fd > 0)
        close(w->result_fd);
    w->result_fd = -1;
    buf_fini(&w->result);
}

void agent_take_answers(struct agent *a)
{
    struct group_result *r = a->result;
    const size_t n = (size_t)a->config->nproc;

    if (a->config->entry != ENTRY_FUNCTION)
        return;
    r->answers = mem_calloc(n, sizeof *r->answers);
    for (size_t i = 0; r->answers && i < n; i++) {
        struct agent_worker *w = &a->workers[i];
        read_some(w); /* what came with the exit */
        r->answers[i] = (struct group_answer){
            a->range.base_rank + (int64_t)i,
            mem_memdup(buf_len(&w->result) ? buf_data(&w->result) : (const void *)"",
                       buf_len(&w->result) + (buf_len(&w->result) == 0)),
            buf_len(&w->result)
        };
        r->answer_count++;
    }
}
