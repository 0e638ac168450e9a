/* rdzv_legacy_addr.c - the store of a version of the backend "etcd", and the workers'
 * address in it: rank 0 writes it, all read it. See rdzv_etcd_legacy.c. */
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "io/clock.h"
#include "io/listen.h"
#include "io/rdzv_legacy_int.h"
#include "io/rdzv_local.h"

#define STORE_MS 300000u /* torch's EtcdStore waits so long */

/* ---- The store of a version ---- */

static void no_matter(void *ctx)
{
    (void)ctx;
}

void legacy_drop_store(struct old *o)
{
    offload_cancel(o->naming);
    o->naming = NULL;
    if (o->store)
        astore_close(o->store, no_matter, NULL);
    o->store = NULL;
}

/* ---- The workers' address ---- */

void legacy_refused(struct old *o, int code, const struct muster_error *err)
{
    if (code == MUSTER_ECANCELED)
        return; /* The store was closed under it: by us. */
    o->refused = *err;
    o->refused.code = code;
    legacy_soon(o);
}

static void on_address(void *ctx, int status, const struct c10d_reply *r,
                       const struct muster_error *err)
{
    struct old *o = ctx;
    struct muster_error bad = { 0 };
    struct c10d_list list;
    struct span addr = { NULL, 0 }, port = { NULL, 0 };
    char text[8] = "";
    long number;

    if (status < 0) {
        legacy_refused(o, status, err);
        return;
    }
    list = r->list;
    (void)c10d_list_next(&list, &addr);
    (void)c10d_list_next(&list, &port);
    (void)snprintf(text, sizeof text, "%.*s", (int)MIN_OF(port.n, 7u),
                   (const char *)port.p);
    number = strtol(text, NULL, 10);
    if (addr.n == 0 || addr.n >= sizeof o->master || number < 1 || number > 65535) {
        err_set(&bad, MUSTER_ESTATE, "rank 0 has announced no address but '%.*s:%s'",
                (int)MIN_OF(addr.n, 200u), (const char *)addr.p, text);
        legacy_refused(o, MUSTER_ESTATE, &bad);
        return;
    }
    (void)snprintf(o->master, sizeof o->master, "%.*s", (int)addr.n,
                   (const char *)addr.p);
    o->round.master_addr = o->master;
    o->round.master_port = (uint16_t)number;
    o->joined = true;
    legacy_soon(o);
}

static void read_address(struct old *o)
{
    const struct span keys[] = { span_str("MASTER_ADDR"), span_str("MASTER_PORT") };
    struct muster_error err = { 0 };
    const int rc = astore_multi_get(o->store, keys, 2, STORE_MS, on_address, o, &err);

    if (rc < 0)
        legacy_refused(o, rc, &err);
}

static void on_published(void *ctx, int status, const struct c10d_reply *r,
                         const struct muster_error *err)
{
    (void)r;
    if (status < 0)
        legacy_refused(ctx, status, err);
    else
        read_address(ctx);
}

static void publish(struct old *o)
{
    struct muster_error err = { 0 };
    uint16_t port = 0;
    char text[8];
    int rc = listen_free_port(&port, &err);

    if (rc == 0) {
        const struct span keys[] = { span_str("MASTER_ADDR"), span_str("MASTER_PORT") };
        struct span values[] = { span_str(o->addr), { NULL, 0 } };

        (void)snprintf(text, sizeof text, "%u", port);
        values[1] = span_str(text);
        rc = astore_multi_set(o->store, keys, values, 2, STORE_MS, on_published, o,
                              &err);
    }
    if (rc < 0)
        legacy_refused(o, rc, &err);
}

static void take_number(struct old *o)
{
    const char *local = etcd_client_local(o->client);

    if (!local[0])
        return;
    rdzv_say_nameless(o->trace, o->addr, local);
    (void)snprintf(o->addr, sizeof o->addr, "%s", local);
}

static void on_name(void *ctx, void *data)
{
    struct old *o = ctx;
    const struct rdzv_fqdn *f = data;

    o->naming = NULL;
    if (f)
        (void)snprintf(o->addr, sizeof o->addr, "%s", f->name);
    else
        rdzv_hostname(o->addr, sizeof o->addr);
    if (!f || !f->resolves)
        take_number(o);
    publish(o);
}

void legacy_settle_address(struct old *o)
{
    struct rdzv_fqdn *job, own;

    o->addr_by_ms = clock_mono_ms() + STORE_MS;
    if (o->round.rank != 0) {
        read_address(o);
        return;
    }
    if (o->local_addr)
        (void)snprintf(o->addr, sizeof o->addr, "%s", o->local_addr);
    if (o->addr[0]) {
        publish(o);
        return;
    }
    if (rdzv_fqdn_quick(&own)) {
        on_name(o, &own);
        return;
    }
    job = mem_calloc(1, sizeof *job);
    if (!job || offload_run(o->base.loop, rdzv_fqdn_resolve, job, RDZV_NAME_MS, on_name,
                            o, &o->naming, NULL) < 0) {
        mem_free(job);
        on_name(o, NULL);
    }
}
