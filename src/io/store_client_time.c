/* store_client_time.c - deadlines of calls; see store_client_int.h.
 *
 * The timer goes off at the earliest deadline that was ever set, and looks at all of
 * them: calls come and go far more often than they are late. */
#include "io/store_client_int.h"

#include "base/err.h"

uint64_t client_mono_ms(void)
{
    return uv_hrtime() / 1000000;
}

static void on_time(uv_timer_t *timer);

void client_arm(struct client *c, uint64_t due_ms)
{
    const uint64_t now = client_mono_ms();

    if (due_ms >= c->armed_ms)
        return;
    c->armed_ms = due_ms;
    uv_update_time(c->base.loop);
    (void)uv_timer_start(&c->timer, on_time, due_ms > now ? due_ms - now : 0, 0);
}

static struct call *first_due(struct client *c, uint64_t now, struct call_list **in)
{
    struct call_list *const lists[] = { &c->queued, &c->unwritten, &c->asked };

    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        for (struct call *call = lists[i]->first; call; call = call->next)
            if (call->deadline_ms <= now) {
                *in = lists[i];
                return call;
            }
    return NULL;
}

/* The server may have answered the wait already; take_cancelled sorts that out. */
static void send_cancel(struct client *c, struct call *call)
{
    const struct c10d_request cancel = { .op = C10D_CANCEL_WAIT };
    struct muster_error err;

    if (c10d_encode_request(&c->out, &cancel, &err) < 0) {
        client_lose(c, &err);
        return;
    }
    c->sent++;
    call->phase = CALL_CANCELING;
    call->deadline_ms = client_mono_ms() + CANCEL_MS;
}

static const char *held_up_by(const struct client *c, const struct call *call)
{
    if (call->phase != CALL_QUEUED)
        return "";
    if (c->dialer)
        return dial_last_failure(c->dialer);
    return c->blocked ? "another call on this connection waits" : "";
}

/* Until when somebody waits for the connection to be free again; 0: nobody does. */
static uint64_t wanted_until(const struct client *c)
{
    uint64_t until = 0;

    for (const struct call *call = c->queued.first; call; call = call->next)
        until = MAX_OF(until, call->deadline_ms);
    return until;
}

/* A server that does not answer CANCEL_WAIT may be stopped for a while: those in the
 * queue have the time that they were given. With nobody left there is no use in a
 * connection on which nothing can be asked. */
static void cancel_unanswered(struct client *c, struct call *call)
{
    const uint64_t now = client_mono_ms(), wanted_ms = wanted_until(c);
    struct muster_error err;

    if (!call->overdue || wanted_ms > now) {
        /* The loop may have rested for long, with the answer waiting to be read. */
        call->deadline_ms = call->overdue ? wanted_ms : now + READ_FIRST_MS;
        call->overdue = true;
        return;
    }
    (void)err_set(&err, MUSTER_EHANGUP,
                  "%s at %s: the connection was given up, since the server did not "
                  "answer CANCEL_WAIT for %d s: it hangs, or the network does",
                  c->name, c->peer, (CANCEL_MS + READ_FIRST_MS) / 1000);
    client_lose(c, &err);
}

static void expire(struct client *c, struct call *call, struct call_list *in)
{
    const bool queued = call->phase == CALL_QUEUED;
    struct muster_error err;

    if (call->phase == CALL_CANCELING) {
        cancel_unanswered(c, call);
        return;
    }
    call_timed_out(call, c->name, held_up_by(c, call), &err);
    call->deadline_ms = MONO_NEVER;
    if (queued)
        call_list_remove(in, call);
    client_tell(call, err.code, NULL, &err);
    if (queued)
        client_end(c, call);
    else if (call->phase == CALL_WAITING && c->state == CLIENT_READY)
        send_cancel(c, call);
}

static void on_time(uv_timer_t *timer)
{
    struct client *c = timer->data;
    const uint64_t now = client_mono_ms();
    struct call_list *const lists[] = { &c->queued, &c->unwritten, &c->asked };
    struct call_list *in;
    struct call *call;

    c->armed_ms = MONO_NEVER;
    while (c->state != CLIENT_CLOSED && (call = first_due(c, now, &in)))
        expire(c, call, in);
    if (c->state == CLIENT_CLOSED)
        return;
    client_run(c);
    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        for (call = lists[i]->first; call; call = call->next)
            client_arm(c, call->deadline_ms);
}
