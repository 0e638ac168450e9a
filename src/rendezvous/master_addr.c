/* rdzv_master.c - see rdzv_master.h.
 *
 * Rank 0: the address of the last round if its server's node is still there and
 * answers; else its own server; published under the round's prefix. Others: what rank 0
 * publishes in this round (rdzv_master_keys.c). If nothing comes, rank 0 is torch's and
 * relies on what it published in an earlier round (rdzv_master_back.c). */
#include "rendezvous/master_addr.h"
#include "base/err.h"
#include "base/mem.h"
#include "net/bind_address.h"
#include "net/listen.h"
#include "rendezvous/coordinator_driver.h"
#include "store/client.h"
#include "store/server.h"
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

/* rdzv_master_int.h - what the files of rdzv_master.h share: rdzv_master.c (begin, end,
 * what is decided), rdzv_master_keys.c (the keys of a round), rdzv_master_back.c (an
 * earlier round's server). */
struct master_address {
    char *host; /* owned, or NULL */
    uint16_t port;
};

struct rdzv_master {
    uv_loop_t *loop;
    uv_timer_t timer;
    char *run_id, *addr; /* owned */
    char *bind;          /* owned */
    bool many, share;
    uint64_t timeout_ms;
    const struct trace *trace;
    size_t refs; /* the timer, and each thing that is closing */
    bool closing;
    void (*on_gone)(void *ctx);
    void *gone_ctx;

    struct bind_address at_home; /* where our server listens */
    struct bind_lookup *binding; /* owned while it runs */
    struct store_server *server; /* owned; for the handler's life once it is there */
    struct master_address known; /* of the last round */
    char *owner_addr; /* owned: the node that was rank 0 when it was announced */
    int64_t owner_pid, owner_id;

    struct rdzv_master_job job;
    rdzv_master_cb cb; /* NULL: idle */
    void *ctx;
    unsigned turn; /* answers to an older job are ignored */
    uint64_t started_ms, by_ms;
    uint64_t back;               /* the earlier round that is being looked at, plus 1 */
    struct master_address found; /* there; being probed */
    struct async_store *probe;   /* owned */
};

/* A callback's context that outlives the job it was made for. */
struct master_ask {
    struct rdzv_master *m;
    unsigned turn;
};

/* MASTER_ADDR and MASTER_PORT of a round. */
struct master_keys {
    char addr[8192], port[8192];
    struct span both[2]; /* point to the two above: not to be copied */
};

/* rdzv_master.c: how it ends, and the address that counts from now on. */
static void master_finish(struct rdzv_master *m, int status,
                          const struct muster_error *err);
static void master_fail(struct rdzv_master *m, int code,
                        const struct muster_error *err);
static int master_take(struct rdzv_master *m, const char *host, uint16_t port);
static void master_drop_probe(struct rdzv_master *m);
static void master_release(struct rdzv_master *m);

/* rdzv_master_keys.c */
static struct master_ask *
master_ask_new(struct rdzv_master *m); /* NULL: out of memory */
static void master_ask_free(struct master_ask *a);
static void master_keys(const struct rdzv_master *m, uint64_t round,
                        struct master_keys *out);
static bool master_parse(const struct c10d_reply *reply, char host[1025],
                         uint16_t *port);
static void master_publish(struct rdzv_master *m); /* what is known */
static void master_publish_own(struct rdzv_master *m);
static void master_wait(struct rdzv_master *m); /* for what rank 0 publishes */

/* rdzv_master_back.c: begins at the round before m->back; then publishes or waits. */
static void master_look_back(struct rdzv_master *m);
static void master_probe(struct rdzv_master *m, const char *host, uint16_t port);

static void master_release(struct rdzv_master *m)
{
    if (--m->refs > 0)
        return;
    void (*cb)(void *) = m->on_gone;
    void *ctx = m->gone_ctx;

    mem_free(m->run_id);
    mem_free(m->addr);
    mem_free(m->bind);
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

static void master_drop_probe(struct rdzv_master *m)
{
    if (!m->probe)
        return;
    m->refs++;
    async_store_close(m->probe, on_released, m);
    m->probe = NULL;
}

static void master_finish(struct rdzv_master *m, int status,
                          const struct muster_error *err)
{
    const rdzv_master_cb cb = m->cb;

    (void)uv_timer_stop(&m->timer);
    bind_address_cancel(m->binding);
    m->binding = NULL;
    master_drop_probe(m);
    m->cb = NULL;
    m->turn++;
    cb(m->ctx, status, m->known.host, m->known.port, err);
}

static void master_fail(struct rdzv_master *m, int code, const struct muster_error *err)
{
    struct muster_error e;

    err_copy(&e, err);
    e.code = code;
    (void)err_wrap(&e, "agreeing on MASTER_ADDR in round %" PRIu64 " of run '%s'",
                   m->job.round, m->run_id);
    master_finish(m, code, &e);
}

/* The address that counts from now on, and whose it is. */
static int master_take(struct rdzv_master *m, const char *host, uint16_t port)
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
    bind_address_cancel(m->binding); /* Its end would publish in a store that is gone. */
    m->binding = NULL;
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
                               .many = opts->many,
                               .refs = 1,
                               .timeout_ms = opts->timeout_ms,
                               .trace = opts->trace };
    m->run_id = mem_strdup(opts->run_id);
    m->addr = mem_strdup(opts->addr);
    m->bind = mem_strdup(opts->bind);
    if (!m->run_id || !m->addr || !m->bind) {
        master_release(m);
        return err_nomem(err);
    }
    (void)uv_timer_init(loop, &m->timer);
    m->timer.data = m;
    *out = m;
    return 0;
}

/* rdzv_master_back.c - the workers' store of an earlier round: which one it was, and
 * whether somebody still answers there. See rdzv_master.c.
 *
 * The newest earlier round counts that carries the name of rank 0 (a torch rank 0 says
 * nothing anew), or of any member if we are rank 0 and new ourselves. */
#define PROBE_MS 2000u /* for a server of an earlier round to answer */
#define MAX_BACK 64u   /* rounds to look back */

/* ---- Does its server still answer? ---- */

static void on_probed(void *ctx, int status, const struct muster_error *err)
{
    struct rdzv_master *m = ctx;

    (void)err;
    if (!m->cb || !m->probe)
        return;
    master_drop_probe(m);
    if (status < 0) {
        master_look_back(m);
        return;
    }
    if (master_take(m, m->found.host, m->found.port) < 0) {
        struct muster_error e;

        master_fail(m, err_nomem(&e), &e);
    } else if (m->job.rank == 0) {
        master_publish(m);
    } else {
        master_finish(m, 0, NULL);
    }
}

static void master_probe(struct rdzv_master *m, const char *host, uint16_t port)
{
    struct muster_error err;
    char *copy = mem_strdup(host);
    const struct store_client_opts opts = { .host = host,
                                            .port = port,
                                            .once = true,
                                            .timeout_ms = PROBE_MS,
                                            .trace = m->trace };
    int rc = copy ? 0 : err_nomem(&err);

    mem_free(m->found.host);
    m->found = (struct master_address){ copy, port };
    if (rc == 0)
        rc = store_client_open(m->loop, &opts, on_probed, m, &m->probe, &err);
    if (rc < 0)
        master_fail(m, rc, &err);
}

/* ---- Earlier rounds, newest first ---- */

static bool is_member_addr(const struct rdzv_master *m, const char *addr)
{
    for (size_t i = 0; i < m->job.count; i++) {
        if (span_eq(m->job.members[i].addr, span_str(addr)))
            return true;
    }
    return false;
}

static void on_older(void *ctx, int status, const struct c10d_reply *reply,
                     const struct muster_error *err)
{
    struct master_ask *a = ctx;
    struct rdzv_master *m = a->m;
    char host[1025];
    uint16_t port;

    (void)err;
    if (a->turn == m->turn && m->cb) {
        /* A torch rank 0 stands by its own; a new rank 0 may take over anybody's. */
        if (status == 0 && master_parse(reply, host, &port) &&
            (m->job.rank == 0 ? is_member_addr(m, host)
                              : span_eq(m->job.members[0].addr, span_str(host))))
            master_probe(m, host, port);
        else
            master_look_back(m);
    }
    master_ask_free(a);
}

static void on_older_there(void *ctx, int status, const struct c10d_reply *reply,
                           const struct muster_error *err);

static int query(struct rdzv_master *m, uint64_t round, bool values)
{
    struct master_keys keys;
    struct master_ask *a = master_ask_new(m);
    int rc;

    if (!a)
        return MUSTER_ENOMEM;
    master_keys(m, round, &keys);
    rc = values ? async_store_multi_get(m->job.store, keys.both, 2, m->timeout_ms,
                                        on_older, a, NULL)
                : async_store_check(m->job.store, keys.both, 2, m->timeout_ms,
                                    on_older_there, a, NULL);
    if (rc < 0)
        master_ask_free(a);
    return rc;
}

static void on_older_there(void *ctx, int status, const struct c10d_reply *reply,
                           const struct muster_error *err)
{
    struct master_ask *a = ctx;
    struct rdzv_master *m = a->m;

    (void)err;
    if (a->turn == m->turn && m->cb &&
        (status < 0 || reply->number != 0 || query(m, m->back, true) < 0))
        master_look_back(m);
    master_ask_free(a);
}

/* One round further back; when there is none, rank 0 serves and others go on waiting.
 */
static void master_look_back(struct rdzv_master *m)
{
    while (m->back > 0 && m->job.round - (m->back - 1) <= MAX_BACK) {
        m->back--;
        if (query(m, m->back, false) == 0)
            return;
    }
    m->back = 0;
    if (m->job.rank == 0)
        master_publish_own(m);
    else
        master_wait(m);
}

/* rdzv_master_keys.c - the two keys of a round that name the workers' store: rank 0
 * publishes them, the others wait for them. See rdzv_master.c. */
#define SLICE_MS   500u  /* one wait for this round's keys */
#define PATIENT_MS 3000u /* then look at earlier rounds: torch polls each second */

/* ---- Asking the store ---- */

static struct master_ask *master_ask_new(struct rdzv_master *m)
{
    struct master_ask *a = mem_alloc(sizeof *a);

    if (a) {
        *a = (struct master_ask){ m, m->turn };
        m->refs++;
    }
    return a;
}

static void master_ask_free(struct master_ask *a)
{
    master_release(a->m);
    mem_free(a);
}

static void master_keys(const struct rdzv_master *m, uint64_t round,
                        struct master_keys *out)
{
    (void)snprintf(out->addr, sizeof out->addr,
                   "torch.rendezvous.%s.%" PRIu64 "/MASTER_ADDR", m->run_id, round);
    (void)snprintf(out->port, sizeof out->port,
                   "torch.rendezvous.%s.%" PRIu64 "/MASTER_PORT", m->run_id, round);
    out->both[0] = span_str(out->addr);
    out->both[1] = span_str(out->port);
}

static bool parse_port(struct span s, uint16_t *out)
{
    uint32_t port = 0;

    if (s.n == 0 || s.n > 5)
        return false;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] < '0' || s.p[i] > '9')
            return false;
        port = port * 10 + (uint32_t)(s.p[i] - '0');
    }
    *out = (uint16_t)port;
    return port > 0 && port < 65536;
}

/* The two values of a MULTI_GET, which come from a store that anybody can write to. */
static bool master_parse(const struct c10d_reply *reply, char host[1025],
                         uint16_t *port)
{
    struct c10d_list list = reply->list;
    struct span h, p;

    if (!c10d_list_next(&list, &h) || !c10d_list_next(&list, &p) || h.n == 0 ||
        h.n >= 1025 || memchr(h.p, '\0', h.n) || memchr(h.p, '\n', h.n) ||
        !parse_port(p, port))
        return false;
    memcpy(host, h.p, h.n);
    host[h.n] = '\0';
    return true;
}

/* ---- Rank 0: publish ---- */

static void on_published(void *ctx, int status, const struct c10d_reply *reply,
                         const struct muster_error *err)
{
    struct master_ask *a = ctx;
    struct rdzv_master *m = a->m;

    (void)reply;
    if (a->turn == m->turn && m->cb) {
        if (status < 0)
            master_fail(m, status, err);
        else
            master_finish(m, 0, NULL);
    }
    master_ask_free(a);
}

static void master_publish(struct rdzv_master *m)
{
    struct master_keys keys;
    char port[8];
    struct master_ask *a = master_ask_new(m);
    struct muster_error err;
    int rc = a ? 0 : err_nomem(&err);

    master_keys(m, m->job.round, &keys);
    (void)snprintf(port, sizeof port, "%u", (unsigned)m->known.port);
    if (rc == 0) {
        const struct span values[] = { span_str(m->known.host), span_str(port) };

        rc = async_store_multi_set(m->job.store, keys.both, values, 2, m->timeout_ms,
                                   on_published, a, &err);
        if (rc < 0)
            master_ask_free(a);
    }
    if (rc < 0)
        master_fail(m, rc, &err);
}

static int serve(struct rdzv_master *m, struct muster_error *err)
{
    struct store_server_opts opts;

    if (m->server)
        return 0;
    store_server_opts_init(&opts);
    opts.tenant = &coordinator_tenant;
    opts.bind = bind_address_text(&m->at_home);
    opts.trace = m->trace;
    if (store_server_open(m->loop, &opts, &m->server, err) < 0)
        return err->code;
    bind_address_log(m->trace, "the workers' store", store_server_address(m->server),
                     &m->at_home);
    return 0;
}

static void serve_and_publish(struct rdzv_master *m)
{
    struct muster_error err = { 0 };
    uint16_t port = 0;
    int rc = m->share ? serve(m, &err) : listen_free_port(&port, &err);

    if (rc == 0 && m->share)
        port = store_server_port(m->server);
    if (rc == 0 && master_take(m, m->addr, port) < 0)
        rc = err_nomem(&err);
    if (rc < 0)
        master_fail(m, rc, &err);
    else
        master_publish(m);
}

static void master_on_bind_address(void *ctx, const struct bind_address *at)
{
    struct rdzv_master *m = ctx;

    m->binding = NULL;
    m->at_home = *at;
    serve_and_publish(m);
}

static void master_publish_own(struct rdzv_master *m)
{
    const struct bind_ask ask = { .asked = m->bind, .host = m->addr, .many = m->many };

    if (m->share && !m->server)
        bind_address_find(m->loop, &ask, master_on_bind_address, m, &m->binding);
    else
        serve_and_publish(m);
}

/* ---- Others: wait for this round's ---- */

static void on_now(void *ctx, int status, const struct c10d_reply *reply,
                   const struct muster_error *err)
{
    struct master_ask *a = ctx;
    struct rdzv_master *m = a->m;
    const uint64_t now = uv_now(m->loop);
    char host[1025];
    uint16_t port;
    struct muster_error e;

    if (a->turn != m->turn || !m->cb) {
        ;
    } else if (status == 0 && !master_parse(reply, host, &port)) {
        (void)err_set(&e, MUSTER_ESTATE, "the store holds no address there");
        master_fail(m, MUSTER_ESTATE, &e);
    } else if (status == 0) {
        if (master_take(m, host, port) < 0)
            master_fail(m, err_nomem(&e), &e);
        else
            master_finish(m, 0, NULL);
    } else if (status != MUSTER_ETIMEDOUT) {
        master_fail(m, status, err);
    } else if (now >= m->by_ms) {
        (void)err_set(&e, MUSTER_ETIMEDOUT,
                      "rank 0 ('%.*s') has announced none within %" PRIu64 " s",
                      (int)m->job.members[0].addr.n,
                      (const char *)m->job.members[0].addr.p, m->timeout_ms / 1000);
        master_fail(m, MUSTER_ETIMEDOUT, &e);
    } else if (m->share && m->job.round > 0 && now >= m->started_ms + PATIENT_MS) {
        m->back = m->job.round;
        master_look_back(m);
    } else {
        master_wait(m);
    }
    master_ask_free(a);
}

static void master_wait(struct rdzv_master *m)
{
    struct master_keys keys;
    struct master_ask *a = master_ask_new(m);
    struct muster_error err;
    int rc = a ? 0 : err_nomem(&err);

    master_keys(m, m->job.round, &keys);
    if (rc == 0) {
        rc = async_store_multi_get(m->job.store, keys.both, 2,
                                   MIN_OF(SLICE_MS, m->timeout_ms), on_now, a, &err);
        if (rc < 0)
            master_ask_free(a);
    }
    if (rc < 0)
        master_fail(m, rc, &err);
}
