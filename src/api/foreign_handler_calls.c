/* handler_calls.c - the functions of a caller's handler, on threads of their own. */
#include "api/foreign_handler_int.h"
#include "base/err.h"
#include "base/mem.h"

#define CALL_MS 60000u /* for every function but next, which takes its time */

static const char *const names[CALL_KINDS] = {
    [CALL_NEXT] = "next",         [CALL_POLL] = "is_closed or num_nodes_waiting",
    [CALL_CLOSE] = "set_closed",  [CALL_LEAVE] = "leave",
    [CALL_SHUTDOWN] = "shutdown", [CALL_FREE] = "free",
};

static void poll(struct call *c)
{
    const int closed = c->ops->is_closed(c->self, &c->err);

    c->status = closed < 0 ? closed : 0;
    c->closed = closed > 0;
    if (c->status < 0)
        return;
    c->waiting = c->ops->num_nodes_waiting(c->self, &c->err);
    if (c->waiting < 0)
        c->status = c->waiting >= INT32_MIN ? (int)c->waiting : MUSTER_EBUG;
}

/* On the thread. */
static void work(void *data)
{
    struct call *c = data;

    switch (c->kind) {
    case CALL_NEXT:
        c->status = c->ops->next(c->self, &c->round, &c->err);
        break;
    case CALL_POLL:
        poll(c);
        break;
    case CALL_CLOSE:
        c->status = c->ops->set_closed(c->self, &c->err);
        break;
    case CALL_LEAVE:
        c->status = c->ops->leave(c->self, &c->err);
        break;
    case CALL_SHUTDOWN:
        c->status = c->ops->shutdown(c->self, &c->err);
        break;
    case CALL_FREE:
        c->ops->free(c->self);
        break;
    case CALL_KINDS:
        break;
    }
    if (c->status > 0)
        c->status = 0;
}

/* A caller may leave the text out, or forget the code. */
static void complete_error(const struct foreign_handler *h, struct call *c)
{
    if (c->status == 0)
        return;
    c->err.text[sizeof c->err.text - 1] = '\0';
    if (!c->err.text[0])
        (void)err_set(&c->err, c->status, "%s", muster_code_text(c->status));
    c->err.code = c->status;
    (void)err_wrap(&c->err, "the rendezvous backend '%s', run '%s'", h->f->name,
                   h->params.inner.run_id);
}

/* The function is still out there, with the caller's handler in its hands. */
static void lose(struct foreign_handler *h)
{
    struct call c = { .kind = h->kind };

    h->lost = true;
    c.status =
        err_set(&c.err, h->kind == CALL_NEXT ? MUSTER_ECANCELED : MUSTER_ETIMEDOUT,
                "the function '%s' of the rendezvous backend '%s' does not come "
                "back: its handler of the run '%s' is left alone from now on",
                names[h->kind], h->f->name, h->params.inner.run_id);
    trace(h->trace, TRACE_WARN, "%s", c.err.text);
    handler_told(h, &c);
    h->member = h->seated = false;
}

static void on_done(void *ctx, void *data)
{
    struct foreign_handler *h = ctx;
    struct call *c = data;

    h->running = NULL;
    if (c) {
        complete_error(h, c);
        handler_told(h, c);
    } else {
        lose(h);
    }
    handler_go(h);
}

void handler_give_up(struct foreign_handler *h)
{
    blocking_call_cancel(h->running);
    h->running = NULL;
    lose(h);
    handler_go(h);
}

void handler_start(struct foreign_handler *h, enum call_kind kind)
{
    struct call *c = mem_calloc(1, sizeof *c), failed = { .kind = kind };

    h->kind = kind;
    if (!c) {
        failed.status = err_nomem(&failed.err);
    } else {
        c->kind = kind;
        c->ops = h->f->handler;
        c->self = h->self;
        failed.status = blocking_call_run(h->base.loop, work, c,
                                          kind == CALL_NEXT ? UINT64_MAX : CALL_MS,
                                          on_done, h, &h->running, &failed.err);
        if (failed.status == 0)
            return;
        mem_free(c);
    }
    handler_told(h, &failed); /* Without a thread nothing of the caller's can run. */
}
