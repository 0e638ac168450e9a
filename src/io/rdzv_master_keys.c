/* rdzv_master_keys.c - the two keys of a round that name the workers' store: rank 0
 * publishes them, the others wait for them. See rdzv_master.c. */
#include <inttypes.h>
#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"
#include "io/listen.h"
#include "io/rdzv_master_int.h"

#define SLICE_MS   500u  /* one wait for this round's keys */
#define PATIENT_MS 3000u /* then look at earlier rounds: torch polls each second */

/* ---- Asking the store ---- */

struct master_ask *master_ask_new(struct rdzv_master *m)
{
    struct master_ask *a = mem_alloc(sizeof *a);

    if (a) {
        *a = (struct master_ask){ m, m->turn };
        m->refs++;
    }
    return a;
}

void master_ask_free(struct master_ask *a)
{
    master_release(a->m);
    mem_free(a);
}

void master_keys(const struct rdzv_master *m, uint64_t round, struct master_keys *out)
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
bool master_parse(const struct c10d_reply *reply, char host[1025], uint16_t *port)
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

void master_publish(struct rdzv_master *m)
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

        rc = astore_multi_set(m->job.store, keys.both, values, 2, m->timeout_ms,
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
    opts.trace = m->trace;
    return store_server_open(m->loop, &opts, &m->server, err);
}

void master_publish_own(struct rdzv_master *m)
{
    struct muster_error err;
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

void master_wait(struct rdzv_master *m)
{
    struct master_keys keys;
    struct master_ask *a = master_ask_new(m);
    struct muster_error err;
    int rc = a ? 0 : err_nomem(&err);

    master_keys(m, m->job.round, &keys);
    if (rc == 0) {
        rc = astore_multi_get(m->job.store, keys.both, 2,
                              MIN_OF(SLICE_MS, m->timeout_ms), on_now, a, &err);
        if (rc < 0)
            master_ask_free(a);
    }
    if (rc < 0)
        master_fail(m, rc, &err);
}
