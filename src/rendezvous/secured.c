/* secured.c - see secured.h. */
#include "rendezvous/secured.h"

#include <stdio.h>

#include "base/err.h"
#include "rendezvous/relay.h"
#include "store/client.h"

#define PROVE_MS 60000u /* how long reaching the workers' store may take */

void secured_init(struct secured *s, struct auth *auth, const struct log *log)
{
    s->auth = auth_ref(auth);
    s->log = log;
}

static int secured_open_relay(struct secured *s, uv_loop_t *loop,
                              struct muster_error *err)
{
    const struct relay_opts opts = {
        .host = s->served, .port = s->round.master_port, .auth = s->auth, .log = s->log
    };
    const int rc = relay_open(loop, &opts, &s->relay, err);

    if (rc < 0)
        return rc;
    s->round.served_addr = s->served;
    s->round.served_port = s->round.master_port;
    s->round.master_addr = "127.0.0.1";
    s->round.master_port = relay_port(s->relay);
    return 0;
}

static void secured_on_link(void *ctx, int status, const struct muster_error *err)
{
    struct secured *s = ctx;
    struct muster_error e;
    secured_cb cb;

    if (status == MUSTER_ECANCELED)
        return; /* We dropped it ourselves, and s may be gone by now. */
    cb = s->cb;
    s->cb = NULL;
    if (status < 0) {
        err_copy(&e, err);
        (void)err_wrap(&e, "proving this node to the workers' store");
    } else if (s->auth->settings.flags & AUTH_ENCRYPT) {
        status = secured_open_relay(s, s->link->loop, &e);
    }
    cb(s->ctx, status < 0 ? &e : NULL);
}

int secured_prove(struct secured *s, uv_loop_t *loop, const struct rdzv_round *round,
                  bool agents_store, secured_cb cb, void *ctx, struct muster_error *err)
{
    const struct store_client_opts opts = { .host = s->served,
                                            .port = round->master_port,
                                            .timeout_ms = PROVE_MS,
                                            .auth = s->auth,
                                            .log = s->log };
    int rc;

    s->round = *round;
    (void)snprintf(s->served, sizeof s->served, "%s", round->master_addr);
    if (!agents_store && (s->auth->settings.flags & AUTH_ENCRYPT))
        return err_set(err, MUSTER_ENOTSUP,
                       "--encrypt needs the agents' store, which "
                       "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 or the backend rules out");
    if (!agents_store)
        return 1; /* Worker 0 serves the store itself, and cannot prove anything. */
    s->cb = cb;
    s->ctx = ctx;
    rc = store_client_open(loop, &opts, secured_on_link, s, &s->link, err);
    if (rc < 0) {
        s->link = NULL;
        s->cb = NULL;
    }
    return rc;
}

static void secured_gone(void *ctx)
{
    (void)ctx;
}

void secured_drop(struct secured *s)
{
    s->cb = NULL;
    if (s->link)
        async_store_close(s->link, secured_gone, NULL);
    if (s->relay)
        relay_close(s->relay, secured_gone, NULL);
    s->link = NULL;
    s->relay = NULL;
}

void secured_close(struct secured *s, struct handle_set *closing)
{
    s->cb = NULL;
    if (s->link) {
        handle_set_add(closing);
        async_store_close(s->link, handle_set_left, closing);
    }
    if (s->relay) {
        handle_set_add(closing);
        relay_close(s->relay, handle_set_left, closing);
    }
    s->link = NULL;
    s->relay = NULL;
}

void rdzv_log_secret(const struct log *t, const struct auth *auth)
{
    if (!auth)
        log_line(
            t, LOG_WARN, AT_ADVICE,
            "this job has no secret: whoever reaches its ports can join it and end it "
            "(openssl rand -hex 32 > FILE, then --token-file=FILE on all nodes)");
    else if (auth->optional)
        log_line(t, LOG_WARN, AT_RENDEZVOUS,
                 "--token-optional: nodes without the secret are admitted, so whoever "
                 "reaches this job's ports can do what a node of torchrun can");
}
