/* rdzv_master.c - see rdzv_master.h.
 *
 * Rank 0: the address of the last round if its server's node is still there and
 * answers; else its own server; published under the round's prefix. Others: what rank 0
 * publishes in this round (rdzv_master_keys.c). If nothing comes, rank 0 is torch's and
 * relies on what it published in an earlier round (rdzv_master_back.c). */
#include "io/rdzv_master.h"

#include <assert.h>
#include <inttypes.h>

#include "base/err.h"
#include "base/mem.h"
#include "io/rdzv_master_int.h"

void master_release(struct rdzv_master *m)
{
    if (--m->refs > 0)
        return;
    void (*cb)(void *) = m->on_gone;
    void *ctx = m->gone_ctx;

    mem_free(m->run_id);
    mem_free(m->addr);
    mem_free(m->known.host);
    mem_free(m->found.host);
    mem_free(m->owner_addr);
    mem_free(m);
    if (cb)
        cb(ctx);
}

static void on_released(void *ctx)
{
    master_release(ctx);
}

void master_drop_probe(struct rdzv_master *m)
{
    if (!m->probe)
        return;
    m->refs++;
    astore_close(m->probe, on_released, m);
    m->probe = NULL;
}

void master_finish(struct rdzv_master *m, int status, const struct muster_error *err)
{
    const rdzv_master_cb cb = m->cb;

    (void)uv_timer_stop(&m->timer);
    master_drop_probe(m);
    m->cb = NULL;
    m->turn++;
    cb(m->ctx, status, m->known.host, m->known.port, err);
}

void master_fail(struct rdzv_master *m, int code, const struct muster_error *err)
{
    struct muster_error e;

    err_copy(&e, err);
    e.code = code;
    (void)err_wrap(&e, "agreeing on MASTER_ADDR in round %" PRIu64 " of run '%s'",
                   m->job.round, m->run_id);
    master_finish(m, code, &e);
}

/* The address that counts from now on, and whose it is. */
int master_take(struct rdzv_master *m, const char *host, uint16_t port)
{
    const struct rdzv_node *zero = &m->job.members[0];
    char *copy = mem_strdup(host);
    char *owner = mem_strndup((const char *)zero->addr.p, zero->addr.n);

    if (!copy || !owner) {
        mem_free(copy);
        mem_free(owner);
        return MUSTER_ENOMEM;
    }
    if (!m->known.host || strcmp(m->known.host, host) != 0 || m->known.port != port) {
        mem_free(m->owner_addr);
        m->owner_addr = owner;
        m->owner_pid = zero->pid;
        m->owner_id = zero->local_id;
    } else {
        mem_free(owner); /* Announced again: its server is where it was. */
    }
    mem_free(m->known.host);
    m->known = (struct master_address){ copy, port };
    return 0;
}

static bool owner_is(const struct rdzv_master *m, const struct rdzv_node *n)
{
    return m->owner_addr && span_eq(n->addr, span_str(m->owner_addr)) &&
           n->pid == m->owner_pid && n->local_id == m->owner_id;
}

static bool owner_is_member(const struct rdzv_master *m)
{
    for (size_t i = 0; i < m->job.count; i++) {
        if (owner_is(m, &m->job.members[i]))
            return true;
    }
    return false;
}

/* ---- Start and end ---- */

static void begin(uv_timer_t *t)
{
    struct rdzv_master *m = t->data;
    const bool zero = m->job.rank == 0;

    if (!m->cb)
        return;
    if (!m->share) {
        if (zero)
            master_publish_own(m);
        else
            master_wait(m);
    } else if (zero && m->server && m->known.host &&
               m->known.port == store_server_port(m->server)) {
        master_publish_own(m);
    } else if (zero && m->known.host && owner_is_member(m)) {
        m->back = 0; /* If it does not answer, we serve ourselves. */
        master_probe(m, m->known.host, m->known.port);
    } else if (zero && !m->known.host && m->job.round > 0) {
        m->back = m->job.round;
        master_look_back(m);
    } else if (zero) {
        master_publish_own(m);
    } else if (m->known.host && owner_is(m, &m->job.members[0])) {
        master_finish(m, 0,
                      NULL); /* It keeps its server; a torch one says nothing anew. */
    } else {
        master_wait(m);
    }
}

void rdzv_master_start(struct rdzv_master *m, const struct rdzv_master_job *job,
                       rdzv_master_cb cb, void *ctx)
{
    assert(!m->cb && !m->closing && job->count > 0);
    m->job = *job;
    m->cb = cb;
    m->ctx = ctx;
    m->turn++;
    m->back = 0;
    m->started_ms = uv_now(m->loop);
    m->by_ms = m->started_ms + m->timeout_ms;
    (void)uv_timer_start(&m->timer, begin, 0, 0);
}

int rdzv_master_set_addr(struct rdzv_master *m, const char *addr)
{
    char *copy = mem_strdup(addr);

    if (!copy)
        return MUSTER_ENOMEM;
    mem_free(m->addr);
    m->addr = copy;
    return 0;
}

bool rdzv_master_waits(const struct rdzv_master *m, uint64_t *by_ms)
{
    if (!m || !m->cb)
        return false;
    *by_ms = m->by_ms;
    return true;
}

void rdzv_master_cancel(struct rdzv_master *m)
{
    m->cb = NULL;
    m->turn++;
    (void)uv_timer_stop(&m->timer);
    master_drop_probe(m);
}

void rdzv_master_wipe(struct rdzv_master *m)
{
    if (m->server)
        store_server_wipe(m->server);
}

static void on_timer_closed(uv_handle_t *h)
{
    master_release(h->data);
}

void rdzv_master_close(struct rdzv_master *m, void (*cb)(void *ctx), void *ctx)
{
    if (!m) {
        if (cb)
            cb(ctx);
        return;
    }
    m->closing = true;
    m->on_gone = cb;
    m->gone_ctx = ctx;
    rdzv_master_cancel(m);
    if (m->server) {
        m->refs++;
        store_server_close(m->server, on_released, m);
        m->server = NULL;
    }
    uv_close((uv_handle_t *)&m->timer, on_timer_closed);
}

int rdzv_master_new(uv_loop_t *loop, const struct rdzv_master_opts *opts,
                    struct rdzv_master **out, struct muster_error *err)
{
    struct rdzv_master *m = mem_calloc(1, sizeof *m);

    if (!m)
        return err_nomem(err);
    *m = (struct rdzv_master){ .loop = loop,
                               .share = opts->share,
                               .refs = 1,
                               .timeout_ms = opts->timeout_ms,
                               .trace = opts->trace };
    m->run_id = mem_strdup(opts->run_id);
    m->addr = mem_strdup(opts->addr);
    if (!m->run_id || !m->addr) {
        master_release(m);
        return err_nomem(err);
    }
    (void)uv_timer_init(loop, &m->timer);
    m->timer.data = m;
    *out = m;
    return 0;
}
