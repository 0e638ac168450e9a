/* rdzv_master_back.c - the workers' store of an earlier round: which one it was, and
 * whether somebody still answers there. See rdzv_master.c.
 *
 * The newest earlier round counts that carries the name of rank 0 (a torch rank 0 says
 * nothing anew), or of any member if we are rank 0 and new ourselves. */
#include "base/err.h"
#include "base/mem.h"
#include "io/rdzv_master_int.h"
#include "io/store_client.h"

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

void master_probe(struct rdzv_master *m, const char *host, uint16_t port)
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
    rc = values ? astore_multi_get(m->job.store, keys.both, 2, m->timeout_ms, on_older,
                                   a, NULL)
                : astore_check(m->job.store, keys.both, 2, m->timeout_ms,
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
void master_look_back(struct rdzv_master *m)
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
