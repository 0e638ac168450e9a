/* pmi.c - see pmi.h. */
#include "pmi/pmi.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "loop/handle_set.h"
#include "store/core/gather.h"
#include "store/dialogue_driver.h"

#define KEYS "muster/pmi/" /* + attempt, barrier and node */

struct pmi_client {
    struct pmi *pmi;
    uv_poll_t poll;
    int fd;      /* -1: none */
    bool opened; /* the handle must be closed */
};

struct pmi {
    struct pmi_opts opts;
    struct pmi_core *core;
    struct pmi_client *clients; /* owned, one for each worker */
    struct gather gather;
    struct dialogue_driver *driver; /* NULL: no barrier is under way */
    uint64_t barriers;
    bool broken; /* out of memory: nothing is done any more */
    struct handle_set closing;
};

static void pmi_perform(struct pmi *p, int rc, struct pmi_fx_list *fx);

static void pmi_trouble(struct pmi *p, int64_t worker, struct muster_error *err)
{
    p->broken = p->broken || err->code;
    p->opts.on_trouble(p->opts.ctx, worker, err);
}

static void pmi_on_gathered(void *ctx, const struct dialogue_fx *fx)
{
    struct pmi *p = ctx;
    struct pmi_fx_list out = { 0 };
    struct muster_error err = fx->err;
    const bool done = fx->kind == DIALOGUE_DONE;
    const int rc = done ? pmi_gathered(p->core, &p->gather.texts, &out) : 0;

    dialogue_driver_close(p->driver);
    p->driver = NULL;
    gather_fini(&p->gather);
    p->gather = (struct gather){ 0 };
    if (done)
        pmi_perform(p, rc, &out);
    else
        pmi_trouble(p, 0, &err);
}

/* There is no deadline: how long a rank takes to its MPI_Init is its own affair, and a
 * node that is lost is found out by others. */
static void gather_begin(struct pmi *p)
{
    struct muster_error err;

    p->gather = (struct gather){ .rank = p->opts.node_rank,
                                 .world = p->opts.place.nodes,
                                 .text = pmi_exchange(p->core),
                                 .timeout_ms = MONO_NEVER,
                                 .what = "a barrier of PMI" };
    (void)snprintf(p->gather.prefix, sizeof p->gather.prefix,
                   KEYS "%" PRId64 "/%" PRIu64 "/", p->opts.attempt, p->barriers++);
    dialogue_init(&p->gather.dialogue);
    if (dialogue_driver_open(p->opts.store, &p->gather.dialogue, gather_step,
                             pmi_on_gathered, p, &p->driver, &err) < 0) {
        p->driver = NULL;
        pmi_trouble(p, 0, &err);
    }
}

static void client_hang_up(struct pmi_client *c)
{
    if (c->fd < 0)
        return;
    (void)uv_poll_stop(&c->poll);
    close(c->fd);
    c->fd = -1;
}

/* A worker has one question at a time under way, so there is room for the answer; one
 * that does not read is none of MPI's. */
static void client_send(struct pmi_client *c, struct buf *out)
{
    if (c->fd >= 0 && send(c->fd, buf_data(out), buf_len(out),
                           MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)buf_len(out))
        client_hang_up(c);
    buf_clear(out);
}

static void client_drop(struct pmi *p, const struct pmi_fx *fx)
{
    struct muster_error err = { 0 };

    client_hang_up(&p->clients[fx->worker]);
    (void)snprintf(err.text, sizeof err.text,
                   "has sent %s on PMI_FD, which is no PMI-1; it is not answered any "
                   "more",
                   fx->why);
    pmi_trouble(p, fx->worker, &err);
}

static void pmi_perform(struct pmi *p, int rc, struct pmi_fx_list *fx)
{
    struct muster_error err;

    for (size_t i = 0; rc == 0 && i < fx->count && !p->broken; i++) {
        const struct pmi_fx *f = &fx->items[i];

        switch (f->kind) {
        case PMI_SEND:
            client_send(&p->clients[f->worker], pmi_output(p->core, f->worker));
            break;
        case PMI_GATHER:
            gather_begin(p);
            break;
        case PMI_ABORT:
            p->opts.on_abort(p->opts.ctx, f->worker, f->code);
            break;
        case PMI_DROP:
            client_drop(p, f);
            break;
        }
    }
    pmi_fx_fini(fx);
    if (rc && !p->broken) {
        (void)err_nomem(&err);
        pmi_trouble(p, 0, &err);
    }
}

/* Whether there was something. */
static bool client_read(struct pmi_client *c)
{
    struct pmi *p = c->pmi;
    struct pmi_fx_list fx = { 0 };
    char bytes[PMI_LINE_MOST];
    const ssize_t n = recv(c->fd, bytes, sizeof bytes, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n <= 0) {
        client_hang_up(c);
        if (!p->broken && pmi_is_speaking(p->core, c - p->clients))
            p->opts.on_gone(p->opts.ctx, c - p->clients);
        return false;
    }
    if (!p->broken)
        pmi_perform(
            p, pmi_bytes(p->core, c - p->clients, span_of(bytes, (size_t)n), &fx), &fx);
    return true;
}

static void client_on_readable(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    (void)client_read(poll->data);
}

bool pmi_left_early(struct pmi *p, int64_t worker)
{
    struct pmi_client *c = &p->clients[worker];

    while (!p->broken && c->fd >= 0 && client_read(c))
        continue;
    return !p->broken && pmi_is_speaking(p->core, worker);
}

int pmi_open(const struct pmi_opts *opts, struct pmi **out, struct muster_error *err)
{
    struct pmi *p = mem_calloc(1, sizeof *p);

    if (p) {
        p->opts = *opts;
        p->clients = mem_calloc((size_t)opts->place.workers, sizeof *p->clients);
    }
    if (!p || !p->clients || pmi_core_new(&opts->place, &p->core) < 0) {
        if (p)
            mem_free(p->clients);
        mem_free(p);
        return err_nomem(err);
    }
    for (int64_t i = 0; i < opts->place.workers; i++)
        p->clients[i] = (struct pmi_client){ .pmi = p, .fd = -1 };
    *out = p;
    return 0;
}

int pmi_worker(struct pmi *p, int64_t worker, int *theirs, struct muster_error *err)
{
    struct pmi_client *c = &p->clients[worker];
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return err_set(err, MUSTER_EIO, "no sockets for a worker's PMI: %s",
                       strerror(errno));
    c->fd = pair[0];
    c->opened = uv_poll_init(p->opts.loop, &c->poll, c->fd) == 0;
    c->poll.data = c;
    if (!c->opened || uv_poll_start(&c->poll, UV_READABLE, client_on_readable) != 0) {
        close(pair[0]);
        close(pair[1]);
        c->fd = -1;
        return err_set(err, MUSTER_EIO, "a worker's PMI cannot be watched");
    }
    *theirs = pair[1];
    return 0;
}

static void pmi_on_closed(void *ctx)
{
    struct pmi *p = ctx;

    mem_free(p->clients);
    mem_free(p);
}

void pmi_close(struct pmi *p)
{
    if (!p)
        return;
    dialogue_driver_close(p->driver);
    gather_fini(&p->gather);
    pmi_core_free(p->core);
    p->core = NULL;
    handle_set_begin(&p->closing, pmi_on_closed, p);
    for (int64_t i = 0; i < p->opts.place.workers; i++) {
        client_hang_up(&p->clients[i]);
        if (p->clients[i].opened)
            handle_set_close(&p->closing, &p->clients[i].poll);
    }
    handle_set_end(&p->closing);
}
