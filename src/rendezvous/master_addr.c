/* master_addr.c - see master_addr.h: the workers' server, the probe of another node's
 * server, and the machine that decides between them (rendezvous/core/master_addr.c). */
#include "rendezvous/master_addr.h"

#include <assert.h>
#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"
#include "net/bind_address.h"
#include "net/listen.h"
#include "rendezvous/core/master_addr.h"
#include "store/client.h"
#include "store/dialogue_driver.h"
#include "store/extension.h"
#include "store/server.h"

#define PROBE_MS  2000u /* how long to wait for a server of an earlier round */
#define FORGET_MS 5000u /* how long deleting old keys may take */

struct rdzv_master {
    uv_loop_t *loop;
    struct master_addr core;
    char *run_id, *bind; /* owned */
    struct auth *auth;   /* a reference, or NULL */
    bool many;
    const struct log *log;
    struct async_store *store;        /* borrowed while dialogue is not NULL */
    struct dialogue_driver *dialogue; /* owned; NULL: idle */
    struct bind_address listen_at;    /* where our server listens */
    struct bind_lookup *binding;      /* owned while it runs */
    struct store_server *server; /* owned; how long it lives: see master_addr_moves() */
    /* owned; the last round's server, until there is a new one */
    struct store_server *old;
    struct store_server *next;      /* owned; the next round's, opened ahead */
    bool announced;                 /* other nodes have been told of the server */
    struct store_server_stats past; /* totals of servers that are closed */
    struct async_store *probe;      /* owned */
    rdzv_master_cb cb;
    void *ctx;
    size_t refs; /* one for the owner, and one for each part that is closing */
    void (*on_gone)(void *ctx);
    void *gone_ctx;
};

static void master_release(void *ctx)
{
    struct rdzv_master *m = ctx;
    void (*cb)(void *) = m->on_gone;
    void *cb_ctx = m->gone_ctx;

    if (--m->refs > 0)
        return;
    dialogue_fini(&m->core.dialogue);
    mem_free(m->run_id);
    mem_free(m->bind);
    auth_unref(m->auth);
    mem_free(m);
    if (cb)
        cb(cb_ctx);
}

/* ---- what the machine asks for ---- */

static void drop_probe(struct rdzv_master *m)
{
    if (!m->probe)
        return;
    m->refs++;
    async_store_close(m->probe, master_release, m);
    m->probe = NULL;
}

static void master_on_probed(void *ctx, int status, const struct muster_error *err)
{
    struct rdzv_master *m = ctx;

    if (!m->dialogue || !m->probe)
        return;
    drop_probe(m);
    dialogue_driver_answer(m->dialogue, status, 0, err ? err->text : NULL);
}

static void close_server(struct rdzv_master *m, struct store_server **s)
{
    if (!*s)
        return;
    store_server_stats_add(&m->past, *s);
    m->past.connections = m->past.keys = 0;
    m->refs++;
    store_server_close(*s, master_release, m);
    *s = NULL;
}

static int open_server(struct rdzv_master *m, struct store_server **out,
                       struct muster_error *err)
{
    struct store_server_opts opts;
    int rc;

    store_server_opts_init(&opts);
    opts.extension = &run_extension;
    opts.bind = bind_address_text(&m->listen_at);
    opts.auth = m->auth;
    opts.log = m->log;
    rc = store_server_open(m->loop, &opts, out, err);
    if (rc == 0)
        bind_address_log(m->log, "the workers' store", store_server_address(*out),
                         &m->listen_at);
    return rc;
}

static void serve(struct rdzv_master *m)
{
    struct muster_error err = { 0 };

    if (!m->server) {
        m->server = m->next;
        m->next = NULL;
        if (!m->server)
            (void)open_server(m, &m->server, &err);
        close_server(m, &m->old);
    }
    dialogue_driver_answer(m->dialogue, err.code,
                           err.code < 0 ? 0 : store_server_port(m->server), err.text);
}

static void master_on_bind_address(void *ctx, const struct bind_address *at)
{
    struct rdzv_master *m = ctx;

    m->binding = NULL;
    m->listen_at = *at;
    serve(m);
}

static void find_address_and_serve(struct rdzv_master *m)
{
    const struct bind_ask ask = { .asked = m->bind,
                                  .host = m->core.addr,
                                  .many = m->many };

    if (m->server || m->next)
        serve(m);
    else
        bind_address_find(m->loop, &ask, master_on_bind_address, m, &m->binding);
}

static void perform_do(struct rdzv_master *m, enum master_do what)
{
    const struct store_client_opts opts = { .host = m->core.found.host,
                                            .port = m->core.found.port,
                                            .once = true,
                                            .timeout_ms = PROBE_MS,
                                            .auth = m->auth,
                                            .log = m->log };
    struct muster_error err;
    uint16_t port = 0;
    int rc = 0;

    switch (what) {
    case MASTER_SERVE:
        find_address_and_serve(m); /* The answer follows. */
        return;
    case MASTER_FREE_PORT:
        rc = listen_free_port(&port, &err);
        break;
    case MASTER_PROBE:
        rc = store_client_open(m->loop, &opts, master_on_probed, m, &m->probe, &err);
        if (rc == 0)
            return; /* The answer follows. */
        m->probe = NULL;
        break;
    }
    dialogue_driver_answer(m->dialogue, rc, port, rc < 0 ? err.text : NULL);
}

static void master_on_forgotten(void *ctx, int status, const struct c10d_reply *reply,
                                const struct muster_error *err)
{
    (void)ctx; /* It does no harm if the key stays. */
    (void)status;
    (void)reply;
    (void)err;
}

/* No node waits for this. */
static void forget_old_keys(struct rdzv_master *m)
{
    struct c10d_request del = { .op = C10D_DELETE_KEY };
    struct c10d_list keys;
    struct buf list;

    buf_init(&list, SIZE_MAX);
    if (master_addr_old_keys(&m->core, &list) == 0 && buf_len(&list) > 0) {
        keys = (struct c10d_list){ buf_span(&list), 2 };
        while (c10d_list_next(&keys, &del.key))
            (void)async_store_call(m->store, &del, 0, FORGET_MS, master_on_forgotten,
                                   NULL, NULL);
    }
    buf_fini(&list);
}

static void master_on_fx(void *ctx, const struct dialogue_fx *fx)
{
    struct rdzv_master *m = ctx;
    enum rdzv_master_end end = RDZV_MASTER_FAILED;

    if (fx->kind == DIALOGUE_DO) {
        perform_do(m, (enum master_do)fx->what);
        return;
    }
    if (fx->kind != DIALOGUE_FAILED)
        end = fx->kind == DIALOGUE_DONE ? RDZV_MASTER_KNOWN : RDZV_MASTER_REJOIN;
    if (end == RDZV_MASTER_KNOWN)
        forget_old_keys(m);
    rdzv_master_cancel(m);
    m->cb(m->ctx, end, m->core.known.host, m->core.known.port, &fx->err);
}

/* ---- start and end ---- */

/* The workers' keys of the last round would mislead those of this one. So would workers
 * of a lost node that have not noticed yet: with a new server they do not meet anybody.
 * The old server holds its port until the new one has another. */
static void replace_or_wipe_server(struct rdzv_master *m,
                                   const struct rdzv_master_job *job)
{
    if (m->server && master_addr_moves(&m->core) && m->announced) {
        close_server(m, &m->old);
        m->old = m->server;
        m->server = NULL;
        if (job->rank != 0)
            close_server(m, &m->old);
    } else if (m->server && job->wipe) {
        store_server_wipe(m->server);
    }
    if (job->rank != 0)
        close_server(m, &m->next);
    m->announced |= !job->alone;
}

int rdzv_master_start(struct rdzv_master *m, const struct rdzv_master_job *job,
                      rdzv_master_cb cb, void *ctx, struct muster_error *err)
{
    assert(!m->dialogue && job->count > 0);
    m->core.round = job->round;
    m->core.rank = job->rank;
    m->core.all_read = job->all_read;
    m->core.members = job->members;
    m->core.count = job->count;
    m->core.told = job->told;
    m->core.told_at.port = job->told_port;
    (void)snprintf(m->core.told_at.host, sizeof m->core.told_at.host, "%s",
                   job->told_host ? job->told_host : "");
    master_addr_reset(&m->core);
    replace_or_wipe_server(m, job);
    m->cb = cb;
    m->ctx = ctx;
    m->store = job->store;
    return dialogue_driver_open(job->store, &m->core.dialogue, master_addr_step,
                                master_on_fx, m, &m->dialogue, err);
}

uint16_t rdzv_master_prepare(struct rdzv_master *m)
{
    struct muster_error err;

    if (!m->server || m->dialogue || !m->announced || !master_addr_moves(&m->core) ||
        (!m->next && open_server(m, &m->next, &err) < 0))
        return 0; /* Then it is opened when its round has come. */
    return store_server_port(m->next);
}

void rdzv_master_set_addr(struct rdzv_master *m, const char *addr)
{
    (void)snprintf(m->core.addr, sizeof m->core.addr, "%s", addr);
}

bool rdzv_master_waits(const struct rdzv_master *m, uint64_t *by_ms)
{
    if (!m || !m->dialogue)
        return false;
    *by_ms = m->core.dialogue.by_ms;
    return true;
}

bool rdzv_master_serves(const struct rdzv_master *m)
{
    return m && m->server && m->core.known.port == store_server_port(m->server);
}

void rdzv_master_cancel(struct rdzv_master *m)
{
    dialogue_driver_close(m->dialogue);
    m->dialogue = NULL;
    bind_address_cancel(m->binding);
    m->binding = NULL;
    drop_probe(m);
}

bool rdzv_master_stats(const struct rdzv_master *m, struct store_server_stats *to)
{
    if (!m || !(m->server || m->old))
        return false;
    to->requests += m->past.requests;
    to->answers += m->past.answers;
    to->bytes_in += m->past.bytes_in;
    to->bytes_out += m->past.bytes_out;
    store_server_stats_add(to, m->server);
    store_server_stats_add(to, m->old);
    return true;
}

uint64_t rdzv_master_writes(const struct rdzv_master *m)
{
    struct store_server_stats stats = { 0 };

    if (m && m->server)
        store_server_stats(m->server, &stats);
    return stats.writes;
}

uint64_t rdzv_master_first_write_ms(struct rdzv_master *m)
{
    return m && m->server ? store_server_first_write_ms(m->server) : 0;
}

void rdzv_master_close(struct rdzv_master *m, void (*cb)(void *ctx), void *ctx)
{
    if (!m) {
        if (cb)
            cb(ctx);
        return;
    }
    m->on_gone = cb;
    m->gone_ctx = ctx;
    rdzv_master_cancel(m);
    close_server(m, &m->old);
    close_server(m, &m->server);
    close_server(m, &m->next);
    master_release(m);
}

int rdzv_master_new(uv_loop_t *loop, const struct rdzv_master_opts *opts,
                    struct rdzv_master **out, struct muster_error *err)
{
    struct rdzv_master *m = mem_calloc(1, sizeof *m);

    if (!m)
        return err_nomem(err);
    m->loop = loop;
    m->log = opts->log;
    m->refs = 1;
    m->many = opts->many;
    m->run_id = mem_strdup(opts->run_id);
    m->bind = mem_strdup(opts->bind);
    m->auth = auth_ref(opts->auth);
    if (!m->run_id || !m->bind) {
        master_release(m);
        return err_nomem(err);
    }
    m->core.run_id = m->run_id;
    m->core.share = opts->share;
    m->core.timeout_ms = opts->timeout_ms;
    rdzv_master_set_addr(m, opts->addr);
    *out = m;
    return 0;
}
