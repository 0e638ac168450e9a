/* store_client_end.c - how calls end, and connections; see store_client_int.h. */
#include "io/store_client_int.h"

#include "base/err.h"

void client_tell(struct call *call, int status, const struct c10d_reply *reply,
                 const struct muster_error *err)
{
    if (call->orphan)
        return;
    call->orphan = true;
    call->cb(call->ctx, status, reply, err);
}

void client_end(struct client *c, struct call *call)
{
    c->calls--;
    call_free(call);
}

void client_fail_call(struct client *c, struct call *call,
                      const struct muster_error *why)
{
    struct muster_error err = *why;
    char what[160];

    call_text(call, what);
    (void)err_wrap(&err, "%s", what);
    client_tell(call, err.code, NULL, &err);
    client_end(c, call);
}

void client_fail_all(struct client *c, const struct muster_error *why)
{
    struct call_list *const lists[] = { &c->unwritten, &c->asked, &c->queued };
    struct call *call;

    c->blocked = NULL;
    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        while ((call = call_list_take(lists[i])))
            client_fail_call(c, call, why);
}

void client_drop(struct client *c)
{
    dial_free(c->dialer);
    c->dialer = NULL;
    if (c->conn) {
        c->conn->tcp.data = NULL;
        dial_conn_close(c->conn);
    }
    c->conn = NULL;
    if (c->busy)
        c->busy->client = NULL;
    c->busy = NULL;
}

/* Connections are not made anew: what the server knew of us, waits and all, is gone,
 * and only the caller knows what that means. hint is for the call that it was about to
 * answer. */
static void lose_with(struct client *c, const struct muster_error *why,
                      const char *hint)
{
    struct muster_error hinted = *why;
    struct call *first;

    if (c->state != CLIENT_READY)
        return;
    c->state = CLIENT_BROKEN;
    c->why = *why;
    client_drop(c);
    err_add(&hinted, "%s", hint);
    if ((first = call_list_take(&c->asked)))
        client_fail_call(c, first, &hinted);
    client_fail_all(c, why);
    if (c->loss_cb && c->state == CLIENT_BROKEN)
        c->loss_cb(c->loss_ctx, why->code, why);
}

void client_lose(struct client *c, const struct muster_error *why)
{
    lose_with(c, why, "");
}

/* A server of torch has no other way to say no than to hang up. */
static const char *refused_perhaps(const struct call *call)
{
    if (!call)
        return "";
    switch ((int)call->op) {
    case C10D_QUEUE_PUSH:
    case C10D_QUEUE_POP:
    case C10D_QUEUE_LEN:
        return " (torch's store has queues only with use_libuv=True)";
    case C10D_ADD:
    case C10D_BARRIER:
        return " (it hangs up if the key's value is not a number)";
    case C10D_GET:
    case C10D_MULTI_GET:
        return " (with use_libuv=False it hangs up if the key is missing)";
    default:
        return "";
    }
}

void client_lose_uv(struct client *c, int uv)
{
    struct muster_error err;

    (void)err_set(&err, uv == UV_ENOMEM ? MUSTER_ENOMEM : MUSTER_EHANGUP,
                  "%s at %s: %s", c->name, c->peer,
                  uv == UV_EOF ? "Failed to recv, got 0 bytes. Connection was likely "
                                 "closed. Did the remote server shutdown or crash?"
                  : uv == UV_ECONNRESET ? "Connection reset by peer"
                  : uv == UV_EPIPE      ? "Broken pipe"
                                        : uv_strerror(uv));
    lose_with(c, &err, refused_perhaps(c->asked.first));
}
