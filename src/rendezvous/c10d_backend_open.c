/* c10d_backend_open.c - opening the c10d backend: its parameters, which process serves
 * its store, the connection for the state, and reconnecting when that broke.
 *
 * The steps: connect, which also tells whether the server hosts runs. If so, that is
 * all until somebody wants the state: a session may take the connection over. If not,
 * put the sentinel under our key, and ask whether the server can report changes. The
 * sentinel is put again each time, since a server that was restarted starts empty. */
#include "base/err.h"
#include "base/mem.h"
#include "base/py/text.h"
#include "loop/clock.h"
#include "rendezvous/c10d_backend_int.h"
#include "rendezvous/core/conf_table.h"
#include "rendezvous/secured.h"
#include "store/core/reserved.h"
#include "store/extension.h"
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

#define CAPS (&RESERVED_CAPS[1]) /* the client adds the slash */

#define ANSWER_MS       5000u /* for a server to answer */
#define MOST_REOPENED   6u    /* without a secret; and so often the pause is doubled */
#define REOPEN_PAUSE_MS 20u

static void c10d_on_deferred(uv_timer_t *t);

static uint64_t answer_ms(const struct c10d *c)
{
    return MIN_OF(ANSWER_MS, c->read_ms);
}

static void on_lost_closed(void *ctx)
{
    c10d_release(ctx);
}

void c10d_drop(struct c10d *c, struct async_store **s)
{
    if (!*s)
        return;
    c->refs++;
    async_store_close(*s, on_lost_closed, c);
    *s = NULL;
}

/* torch's words come first, since users search for them; then what really happened. */
void c10d_describe(const struct c10d *c, const struct muster_error *err,
                   struct muster_error *out)
{
    err_copy(out, err);
    (void)err_wrap(out, "The connection to the C10d store has failed (%s, run id '%s')",
                   c->where, c->run_id);
    if (c->unbound.code) { /* The cause, known from the start, comes first. */
        struct muster_error cause;

        (void)err_set(&cause, out->code,
                      "%.500s. This machine was to host the store of run '%.100s', and "
                      "the process that holds the port is not a store\n%.400s",
                      c->unbound.text, c->run_id, out->text);
        err_copy(out, &cause);
    }
    if (out->code != MUSTER_ENOMEM)
        out->code = MUSTER_ECONN;
}

/* A connection that breaks or falls silent while we are still opening is made again:
 * the network failed, or the server is being restarted. A server that hangs up each
 * time does not want us; but one with a secret may be hanging up on strangers who flood
 * it, and say no to us in words. */
static bool reopen(struct c10d *c, int status)
{
    if (!c->on_open || (status != MUSTER_EHANGUP && status != MUSTER_ETIMEDOUT) ||
        c->file || c->memory || clock_mono_ms() >= c->open_by_ms ||
        (!c->auth && c->reopened >= MOST_REOPENED))
        return false;
    log_line(c->log, LOG_INFO, AT_RENDEZVOUS,
             "%s: the connection broke; connecting again", c->where);
    c->deferred.err.code = 0;
    (void)uv_timer_start(&c->deferred.timer, c10d_on_deferred,
                         REOPEN_PAUSE_MS << MIN_OF(c->reopened, MOST_REOPENED), 0);
    c->reopened++;
    return true;
}

static void connected(struct c10d *c, int status, const struct muster_error *err)
{
    const rdzv_open_cb cb = c->on_open;
    struct muster_error e = { .code = 0 };

    (void)uv_timer_stop(&c->unbound_timer);
    c->connecting = false;
    c->up = status == 0 && !(cb && c->can_host); /* Else the sentinel is not put yet. */
    if (status < 0)
        c10d_drop(c, &c->state);
    else
        c->lost_by_ms = 0;
    if (status < 0 && reopen(c, status))
        return;
    if (cb) {
        c->on_open = NULL;
        if (status < 0)
            c10d_describe(c, err, &e);
        cb(c->open_ctx, e.code, status == 0 ? NULL : &e);
        return;
    }
    if (c->call.cb)
        c10d_call_go(c, status, err);
}

static void on_caps(void *ctx, int status, const struct c10d_reply *reply,
                    const struct muster_error *err)
{
    struct c10d *c = ctx;

    if (c->closing)
        return;
    if (status < 0) {
        connected(c, status, err);
        return;
    }
    if (reserved_caps_have(reply->value, RESERVED_CAPS_SECRET)) {
        struct muster_error why;

        (void)err_set(&why, MUSTER_EACCES,
                      "the job has a secret, and this node was given none: give it the "
                      "same --token-file (or MUSTER_TOKEN) as the others");
        connected(c, why.code, &why);
        return;
    }
    c->can_watch = reserved_caps_have(reply->value, "changed");
    if (reserved_caps_have(reply->value, RESERVED_CAPS_OLD)) {
        struct muster_error why;

        (void)err_set(&why, MUSTER_EPROTO,
                      "the store is of a muster that speaks version 1 or 2 of the "
                      "protocol between nodes, and this one speaks version 3: use the "
                      "same release of muster on all nodes");
        connected(c, why.code, &why);
        return;
    }
    connected(c, 0, err);
}

static void on_caps_checked(void *ctx, int status, const struct c10d_reply *reply,
                            const struct muster_error *err)
{
    struct c10d *c = ctx;
    const struct c10d_request get = { .op = C10D_GET, .key = span_str(CAPS) };

    if (c->closing)
        return;
    c->can_watch = false;
    if (status == 0 && reply->number == 0 &&
        async_store_call(c->state, &get, 0, answer_ms(c), on_caps, c, NULL) == 0)
        return;
    connected(c, status, err);
}

static void on_sentinel_put(void *ctx, int status, const struct c10d_reply *reply,
                            const struct muster_error *err)
{
    struct c10d *c = ctx;
    const struct span caps = span_str(CAPS);
    struct muster_error why;

    (void)reply; /* Whichever node was first, the sentinel or a state is there now. */
    if (c->closing)
        return;
    if (status < 0 || c->file || c->memory || c->can_host) {
        connected(c, status, err);
        return;
    }
    status = async_store_check(c->state, caps, answer_ms(c), on_caps_checked, c, &why);
    if (status < 0)
        connected(c, status, &why);
}

static void put_sentinel(struct c10d *c)
{
    struct muster_error err;
    const int rc = async_store_compare_set(c->state, span_str(c->key), span_of(NULL, 0),
                                           span_str(RDZV_C10D_SENTINEL), answer_ms(c),
                                           on_sentinel_put, c, &err);

    if (rc < 0)
        c10d_defer(c, rc, &err);
}

static void c10d_on_connected(void *ctx, int status, const struct muster_error *err)
{
    struct c10d *c = ctx;

    if (c->closing)
        return;
    if (status < 0) {
        c->open_by_ms = clock_mono_ms(); /* We tried until the time was up. */
        connected(c, status, err);
        return;
    }
    (void)snprintf(c->local, sizeof c->local, "%s", store_client_local(c->state));
    c->can_host = c->can_watch = store_client_runs(c->state);
    if (c->can_host && c->on_open)
        connected(c, 0, NULL);
    else
        put_sentinel(c);
}

void c10d_connect(struct c10d *c)
{
    struct muster_error err;
    int rc;

    assert(!c->connecting);
    c->connecting = true;
    if (c->state) {
        put_sentinel(c);
        return;
    }
    if (!c->open_by_ms)
        c->open_by_ms = clock_mono_ms() + c->read_ms;
    /* The first time the host may not have started yet, so keep trying; later it was
     * there before. */
    rc = c10d_open_store(c, c->lost_by_ms != 0, c10d_on_connected, c, &c->state, &err);
    if (rc < 0)
        c10d_defer(c, rc, &err);
    else if (c->file || c->memory) /* It is open at once, but say so from the loop. */
        c10d_defer(c, 0, NULL);
}

/* Reports an error that was found inside a call. */
static void c10d_on_deferred(uv_timer_t *t)
{
    struct c10d *c = t->data;

    if (c->closing)
        return;
    if (c->on_open && !c->connecting && c->deferred.err.code == 0)
        c10d_connect(c);
    else if (c->connecting && c->deferred.err.code == 0)
        put_sentinel(c);
    else if (c->connecting || c->on_open)
        connected(c, c->deferred.err.code, &c->deferred.err);
    else if (c->call.cb)
        c10d_fail(c, c->deferred.err.code, &c->deferred.err);
}

void c10d_defer(struct c10d *c, int code, const struct muster_error *err)
{
    if (err)
        err_copy(&c->deferred.err, err);
    c->deferred.err.code = code;
    (void)uv_timer_start(&c->deferred.timer, c10d_on_deferred, 0, 0);
}

/* ---- Which process serves the store ----
 *
 * The user's choice (is_host) counts first. Otherwise the endpoint decides: we host it
 * if it is localhost, our host name, or an address of ours, numeric or resolved, on any
 * interface. The resolver runs off the loop and has a deadline. A process that should
 * host by this rule but cannot bind the port becomes a client: another agent of this
 * machine was first. A run of one node on a free port (--standalone) needs no server,
 * since no other node could find it. */
#define RESOLVE_MS 5000u

static void name_store(struct c10d *c)
{
    if (c->file)
        (void)snprintf(c->where, sizeof c->where, "file://%.1000s", c->path);
    else
        (void)snprintf(c->where, sizeof c->where,
                       strchr(c->at.host, ':') ? "tcp://[%s]:%d" : "tcp://%s:%d",
                       c->at.host, (int)c->at.port);
}

int c10d_open_store(struct c10d *c, bool once, store_open_cb cb, void *ctx,
                    struct async_store **out, struct muster_error *err)
{
    const struct store_client_opts opts = {
        /* To reach our own server we need no resolver, and no name that may lead
         * elsewhere. */
        .host = c->server ? store_server_own_host(c->server) : c->at.host,
        .port = (uint16_t)c->at.port,
        .timeout_ms = c->read_ms,
        .once = once,
        .ask_runs = cb != NULL,
        .lazy = cb == NULL,
        .auth = c->auth,
        .log = c->log,
    };

    if (c->file)
        return store_file_open(c->base.loop, c->path, -1, out, err);
    if (c->memory)
        return c->memory->ops->clone(c->memory, out, err);
    return store_client_open(c->base.loop, &opts, cb, ctx, out, err);
}

static int serve(struct c10d *c, struct muster_error *err)
{
    struct store_server_opts opts;
    int rc;

    if (c->alone) {
        log_line(c->log, LOG_INFO, AT_RENDEZVOUS,
                 "Process %ld has the store of the C10d rendezvous backend to itself: "
                 "there is one node, and no other process knows the port",
                 (long)getpid());
        return store_hash_open(c->base.loop, &c->memory, err);
    }
    store_server_opts_init(&opts);
    opts.extension = &run_extension;
    opts.port = (uint16_t)c->at.port;
    opts.bind = bind_address_text(&c->listen_at);
    opts.auth = c->auth;
    opts.log = c->log;
    rc = store_server_open(c->base.loop, &opts, &c->server, err);
    if (rc < 0)
        return rc;
    c->at.port = store_server_port(c->server);
    name_store(c);
    log_line(c->log, LOG_INFO, AT_RENDEZVOUS,
             "Process %ld hosts the TCP store for the C10d rendezvous backend.",
             (long)getpid());
    bind_address_log(c->log, "the C10d rendezvous", store_server_address(c->server),
                     &c->listen_at);
    if (c->many)
        rdzv_log_secret(c->log, c->auth);
    return 0;
}

/* If another agent of this machine held the port, it would have answered by now. */
#define UNBOUND_MS 1000u

static void c10d_on_unbound(uv_timer_t *t)
{
    const struct c10d *c = t->data;

    log_line(
        c->log, LOG_WARN, AT_RENDEZVOUS,
        "run '%s': %s. This machine is to host the store, and the process that holds "
        "the port "
        "does not answer as a store does; trying again for %llu s",
        c->run_id, c->unbound.text, (unsigned long long)c->read_ms / 1000);
}

static void c10d_on_bind_address(void *ctx, const struct bind_address *at)
{
    struct c10d *c = ctx;
    struct muster_error err;
    int rc;

    c->binding = NULL;
    c->listen_at = *at;
    rc = serve(c, &err);
    if (rc < 0 && (c->is_host == 1 || rc == MUSTER_ENOMEM)) {
        c10d_defer(c, rc == MUSTER_ENOMEM ? rc : MUSTER_ECONN, &err);
        return;
    }
    if (rc < 0) {
        err_copy(&c->unbound, &err);
        log_line(c->log, LOG_INFO, AT_RENDEZVOUS,
                 "%s cannot be bound here (%s): joining it as a client", c->where,
                 err.text);
        (void)uv_timer_start(&c->unbound_timer, c10d_on_unbound, UNBOUND_MS, 0);
    }
    c10d_connect(c);
}

static void on_host_decided(struct c10d *c, const struct rdzv_local *q)
{
    /* No other machine can know a port that the system picked: listen on loopback only,
     * whatever host was given. */
    const struct bind_ask ask = { .asked = c->bind,
                                  .host = c->at.port == 0 ? "localhost" : c->at.host,
                                  .many = c->many && c->at.port != 0 };

    log_line(c->log, LOG_INFO, AT_RENDEZVOUS, "%s: %s the store: %s", c->where,
             q->is_local ? "this process should host" : "another process hosts",
             q->why);
    if (q->is_local)
        bind_address_find(c->base.loop, &ask, c10d_on_bind_address, c, &c->binding);
    else
        c10d_connect(c);
}

static void on_resolved(void *ctx, void *data)
{
    struct c10d *c = ctx;
    struct rdzv_local late = { 0 };

    c->deciding = NULL;
    if (!data)
        (void)snprintf(late.why, sizeof late.why,
                       "the resolver has not answered for %.100s within %u s",
                       c->at.host, RESOLVE_MS / 1000);
    on_host_decided(c, data ? data : &late);
}

static void resolve(struct c10d *c, const struct rdzv_local *q)
{
    struct rdzv_local *job = mem_memdup(q, sizeof *q);
    struct muster_error err;
    const int rc = job ? blocking_call_run(c->base.loop, rdzv_local_resolve, job,
                                           MIN_OF(RESOLVE_MS, c->read_ms), on_resolved,
                                           c, &c->deciding, &err)
                       : err_nomem(&err);

    if (rc < 0) {
        mem_free(job);
        c10d_defer(c, rc, &err);
    }
}

void c10d_host_decide(struct c10d *c)
{
    struct rdzv_local q = { .is_local = c->is_host == 1 };

    if (c->file) {
        c10d_connect(c);
        return;
    }
    memcpy(q.host, c->at.host, sizeof q.host);
    if (c->is_host >= 0) {
        (void)snprintf(q.why, sizeof q.why, "is_host=%d is given", c->is_host);
        on_host_decided(c, &q);
    } else if (rdzv_local_quick(&q)) {
        on_host_decided(c, &q);
    } else {
        resolve(c, &q);
    }
}

/* ---- Parameters ---- */

/* Like torch, take an empty endpoint as a new file, which other nodes cannot find. */
static int read_path(struct c10d *c, const struct rdzv_params *p,
                     struct muster_error *err)
{
    char temp[] = "/tmp/muster-rdzv-XXXXXX";
    int fd;

    if (!*p->endpoint) {
        fd = mkstemp(temp);
        if (fd < 0)
            return err_set(err, MUSTER_EIO,
                           "The file creation for C10d store has failed: %s: %m", temp);
        (void)close(fd);
    }
    c->path = mem_strdup(*p->endpoint ? p->endpoint : temp);
    return c->path ? 0 : err_nomem(err);
}

static int read_params(struct c10d *c, const struct rdzv_params *p,
                       struct muster_error *err)
{
    int64_t seconds = 60;
    size_t kind = 0;
    int rc = conf_word(p, CONF_STORE_TYPE, &kind, err);

    c->file = kind == 1;
    if (rc == 0 && c->file)
        rc = read_path(c, p, err);
    if (rc == 0 && !c->file)
        rc = endpoint_parse(p->endpoint, RDZV_C10D_PORT, &c->at, err);
    if (rc == 0 && !c->file)
        rc = conf_bool(p, CONF_IS_HOST, &c->is_host, err);
    if (rc == 0 && !c->file)
        rc = conf_int(p, CONF_READ_TIMEOUT, &seconds, err);
    if (rc < 0)
        return rc;
    if (!*p->run_id)
        return err_set(err, MUSTER_EINVAL, "The run id must be a non-empty string.");
    c->alone = !c->file && c->at.port == 0 && p->max_nodes == 1;
    c->many = p->max_nodes > 1;
    c->auth = auth_ref(p->auth);
    c->bind = mem_strdup(conf_text(p, CONF_BIND));
    c->read_ms = ms_of_seconds(seconds);
    c->run_id = mem_strdup(p->run_id);
    c->key = mem_printf("%s%s", RDZV_C10D_PREFIX, p->run_id);
    if (!c->run_id || !c->key || !c->bind)
        return err_nomem(err);
    if (strlen(c->key) > C10D_MAX_KEY / 2)
        return err_set(err, MUSTER_EINVAL, "the run id is too long (%zu bytes)",
                       strlen(p->run_id));
    name_store(c);
    return 0;
}

int backend_c10d_new(uv_loop_t *loop, const struct rdzv_params *params,
                     const struct log *log, struct rdzv_backend **out,
                     struct muster_error *err)
{
    struct c10d *c = mem_calloc(1, sizeof *c);
    int rc;

    if (!c)
        return err_nomem(err);
    c->base = (struct rdzv_backend){ &c10d_ops, loop };
    c->log = log;
    c->refs = 1;
    buf_init(&c->call.sent, SIZE_MAX);
    buf_init(&c->call.expected, SIZE_MAX);
    rc = read_params(c, params, err);
    if (rc < 0) {
        c10d_release(c);
        return rc;
    }
    (void)uv_timer_init(loop, &c->deferred.timer);
    (void)uv_timer_init(loop, &c->unbound_timer);
    c->deferred.timer.data = c->unbound_timer.data = c;
    c->refs = 2; /* the timers */
    *out = &c->base;
    return 0;
}
