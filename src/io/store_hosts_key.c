/* store_hosts_key.c - the key by which torchrun's nodes read and change the state of a
 * hosted rendezvous: brought up to date before a request looks at it, and looked at
 * after a request that may have changed it. */
#include "io/clock.h"
#include "io/store_hosts_int.h"
#include "store/reserved.h"

#define NOBODY UINT32_MAX /* as a peer of the store: the server itself */

static struct hosted_run *run_of_key(struct store_server *s, struct span key)
{
    const struct reserved r = reserved_parse(key);
    struct map_link *link;

    if (r.kind == RESERVED_IS_CHANGED)
        key = r.key;
    if (key.n < sizeof RUN_KEY || memcmp(key.p, RUN_KEY, sizeof RUN_KEY - 1) != 0)
        return NULL;
    link = map_get(&s->hosts->runs, key);
    return link ? CONTAINER_OF(link, struct hosted_run, link) : NULL;
}

static bool key_value(struct store_server *s, struct hosted_run *run,
                      struct span *value)
{
    const struct c10d_request get = { .op = C10D_GET, .key = run->link.key };
    const struct store_event ev = { STORE_REQUEST, .peer = NOBODY, .request = &get };

    if (store_step(s->store, &ev, &s->hosts->store_fx) < 0 ||
        s->hosts->store_fx.count != 1 ||
        s->hosts->store_fx.items[0].kind != STORE_REPLY)
        return false;
    *value = s->hosts->store_fx.items[0].reply.value;
    return true;
}

void hosts_show(struct store_server *s, struct hosted_run *run, bool aged)
{
    const struct now now = clock_now();
    struct c10d_request set = { .op = C10D_SET, .key = run->link.key };

    if (!rdzv_host_stale(run->host, now, aged) ||
        rdzv_host_view(run->host, now, &set.value) < 0)
        return;
    server_set(s, &set);
}

void hosts_look(struct store_server *s, struct hosted_run *run)
{
    struct rdzv_host_event ev = { .kind = RDZV_HOST_SEEN };

    if (!key_value(s, run, &ev.value) || ev.value.n == 0 ||
        span_eq(ev.value, rdzv_host_last_view(run->host)))
        return;
    hosts_feed(s, run, &ev);
    if (run->watched)
        hosts_show(s, run, false);
}

/* Calls fn for each run that the request's keys name. */
static void each_run(struct store_server *s, const struct c10d_request *req,
                     void (*fn)(struct store_server *, struct hosted_run *,
                                const struct c10d_request *, struct span))
{
    struct c10d_list list = req->list;
    struct span key = req->key;
    struct hosted_run *run;

    if (list.count == 0) {
        run = run_of_key(s, key);
        if (run)
            fn(s, run, req, key);
        return;
    }
    while (c10d_list_next(&list, &key)) { /* A value of MULTI_SET names no run. */
        run = run_of_key(s, key);
        if (run)
            fn(s, run, req, key);
    }
}

static void before(struct store_server *s, struct hosted_run *run,
                   const struct c10d_request *req, struct span key)
{
    if (reserved_parse(key).kind == RESERVED_IS_CHANGED)
        run->watched = true;
    /* One that compares has just read: a fresher heartbeat would only make it fail. */
    hosts_show(s, run, req->op != C10D_COMPARE_SET);
}

static void after(struct store_server *s, struct hosted_run *run,
                  const struct c10d_request *req, struct span key)
{
    (void)key;
    switch (req->op) {
    case C10D_SET:
    case C10D_COMPARE_SET:
    case C10D_ADD:
    case C10D_APPEND:
    case C10D_MULTI_SET:
    case C10D_BARRIER:
        hosts_look(s, run);
        return;
    default:
        return;
    }
}

void hosts_before(struct store_server *s, const struct c10d_request *req)
{
    each_run(s, req, before);
}

void hosts_after(struct store_server *s, const struct c10d_request *req)
{
    each_run(s, req, after);
    hosts_arm(s);
}
