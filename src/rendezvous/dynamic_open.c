/* dynamic_open.c - the dynamic handler before it is at work: its parameters, its name
 * among the nodes, and opening its backend. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "loop/clock.h"
#include "rendezvous/core/conf_table.h"
#include "rendezvous/core/endpoint.h"
#include "rendezvous/dynamic_int.h"
#include "rendezvous/local_identity.h"

/* ---- Our name ---- */

/* Where the backend can tell who ends, sooner than heartbeats do. */
void dynamic_present(struct dynamic_handler *d)
{
    const struct rdzv_node self = { span_str(d->addr), d->pid, d->local_id };
    char text[128]; /* as long as the core has it: the two are compared */

    if (d->backend->ops->presence)
        d->backend->ops->presence(d->backend, rdzv_node_text(&self, text, sizeof text),
                                  dynamic_peer_gone, d);
}

static void announce_number(struct dynamic_handler *d)
{
    char addr[1025];

    if (!d->backend->ops->own_addr ||
        !d->backend->ops->own_addr(d->backend, addr, sizeof addr))
        return;
    rdzv_master_set_addr(d->master, addr);
    rdzv_say_nameless(d->trace, d->addr, addr);
}

static void on_backend(void *ctx, int status, const struct muster_error *err)
{
    struct dynamic_handler *d = ctx;

    if (d->destroying)
        return;
    d->stage = status == 0 ? STAGE_READY : STAGE_BROKEN;
    if (status < 0)
        err_copy(&d->broken, err);
    else if (!dynamic_be_member(d))
        dynamic_present(d);
    if (status == 0 && d->nameless)
        announce_number(d);
    dynamic_opened(d);
}

/* Ranks follow the order of the nodes' names, everywhere. node_order=N, which a
 * scheduler knows, puts a number of fixed width before ours; where we can be reached is
 * another matter. */
static int rank_order_name(struct dynamic_handler *d, struct muster_error *err)
{
    char name[sizeof d->addr];
    int64_t order;
    int rc = conf_int(&d->params, CONF_NODE_ORDER, &order, err);

    if (rc < 0 || order < 0)
        return rc;
    memcpy(name, d->addr, sizeof name);
    (void)snprintf(d->addr, sizeof d->addr, "%08" PRId64 ".%.1000s", order, name);
    return 0;
}

static void named(struct dynamic_handler *d)
{
    const struct rdzv_master_opts opts = {
        .run_id = d->params.run_id,
        .addr = d->where,
        .bind = conf_text(&d->params, CONF_BIND),
        .auth = d->params.auth,
        .many = d->params.max_nodes > 1,
        .share = d->share,
        .timeout_ms = d->read_ms,
        .trace = d->trace,
    };
    int rc = rank_order_name(d, &d->broken);

    if (rc == 0)
        rc = dynamic_core(d, &d->broken);
    if (rc == 0)
        rc = rdzv_master_new(d->base.loop, &opts, &d->master, &d->broken);
    if (rc < 0) {
        d->stage = STAGE_BROKEN;
        dynamic_opened(d);
        return;
    }
    d->stage = STAGE_OPEN;
    d->open_by_ms = clock_mono_ms() + d->read_ms;
    d->backend->ops->open(d->backend, on_backend, d);
}

/* A job of one node that was given no address of another machine: its workers' store is
 * for this machine alone, and so is the address that they are told. */
static bool stays_at_home(const struct dynamic_handler *d)
{
    struct endpoint at;

    if (d->params.max_nodes != 1 || d->params.local_addr)
        return false;
    if (dynamic_is_alone(d) || endpoint_parse(d->params.endpoint, 0, &at, NULL) < 0)
        return true; /* A path, for a store in a file. */
    return strcmp(at.host, "localhost") == 0 || strncmp(at.host, "127.", 4) == 0 ||
           strcmp(at.host, "::1") == 0;
}

static void on_name(void *ctx, void *data)
{
    struct dynamic_handler *d = ctx;
    const struct rdzv_fqdn *f = data;

    d->naming = NULL;
    d->nameless = !f || !f->resolves;
    if (f) {
        (void)snprintf(d->addr, sizeof d->addr, "%s", f->name);
    } else {
        rdzv_hostname(d->addr, sizeof d->addr);
        trace(d->trace, TRACE_WARN,
              "the resolver has not told this machine's full name within %u s; it is "
              "'%s' to the other nodes (--local-addr gives another)",
              RDZV_NAME_MS / 1000, d->addr);
    }
    (void)snprintf(d->where, sizeof d->where, "%s",
                   stays_at_home(d) ? "127.0.0.1" : d->addr);
    named(d);
}

bool dynamic_is_alone(const struct dynamic_handler *d)
{
    const char *colon = strrchr(d->params.endpoint, ':');

    return d->params.max_nodes == 1 && colon && strcmp(colon, ":0") == 0;
}

void dynamic_open(struct dynamic_handler *d)
{
    struct rdzv_fqdn *job, own;

    d->stage = STAGE_NAME;
    if (d->params.local_addr) {
        (void)snprintf(d->addr, sizeof d->addr, "%s", d->params.local_addr);
        (void)snprintf(d->where, sizeof d->where, "%s", d->addr);
        named(d);
        return;
    }
    if (rdzv_fqdn_quick(&own)) {
        on_name(d, &own);
        return;
    }
    if (dynamic_is_alone(d)) { /* All who want to reach us are here: no DNS for that. */
        rdzv_hostname(d->addr, sizeof d->addr);
        (void)snprintf(d->where, sizeof d->where, "127.0.0.1");
        named(d);
        return;
    }
    job = mem_calloc(1, sizeof *job);
    if (!job || blocking_call_run(d->base.loop, rdzv_fqdn_resolve, job, RDZV_NAME_MS,
                                  on_name, d, &d->naming, &d->broken) < 0) {
        mem_free(job);
        on_name(d, NULL);
    }
}

int dynamic_core(struct dynamic_handler *d, struct muster_error *err)
{
    struct rdzv *core;
    uint64_t seed;
    const struct rdzv_config cfg = {
        .run_id = d->params.run_id,
        .self = { span_str(d->addr), d->pid, d->local_id },
        .settings = d->settings,
        .seed = uv_random(NULL, NULL, &seed, sizeof seed, 0, NULL) == 0 ? seed
                                                                        : uv_hrtime(),
        .trace = d->trace,
    };
    const int rc = rdzv_new(&cfg, &core, err);

    if (rc == 0) {
        rdzv_free(d->core);
        d->core = core;
    }
    return rc;
}

void dynamic_rename(struct dynamic_handler *d)
{
    uint32_t id;

    if (uv_random(NULL, NULL, &id, sizeof id, 0, NULL) != 0)
        id = (uint32_t)uv_hrtime();
    d->local_id = 1000 + id % 1000000000u;
}

/* ---- Settings ---- */

static void on_settings(void *ctx, int status, const struct c10d_reply *reply,
                        const struct muster_error *err)
{
    struct dynamic_handler *d = ctx;
    struct muster_error why;

    (void)err; /* Not every store can compare and set; then nobody is told. */
    if (status == 0 && d->member &&
        rdzv_settings_nnodes_differ(&d->settings, reply->value))
        return; /* The coordinator refuses the join for it, and says so. */
    if (status == 0 && rdzv_settings_compare(&d->settings, reply->value, &why) < 0)
        trace(d->trace, TRACE_WARN, "run '%s': %s", d->params.run_id, why.text);
}

void dynamic_settings(struct dynamic_handler *d)
{
    char *key = mem_printf("muster.rendezvous.%s.settings", d->params.run_id);
    struct buf ours;

    buf_init(&ours, 4096);
    if (key && rdzv_settings_print(&d->settings, &ours) == 0)
        (void)async_store_compare_set(d->store, span_str(key), span_of(NULL, 0),
                                      buf_span(&ours), d->read_ms, on_settings, d,
                                      NULL);
    buf_fini(&ours);
    mem_free(key);
}

/* ---- Parameters ---- */

static int read_settings(struct dynamic_handler *d, struct muster_error *err)
{
    const struct rdzv_params *p = &d->params;
    struct rdzv_settings *s = &d->settings;
    int64_t read_s = 60;
    int rc;

    rdzv_settings_init(s, p->min_nodes, p->max_nodes);
    rc = rdzv_settings_read(s, p, err);
    s->ours_only = strcmp(p->backend, "etcd-v3") == 0; /* torch does not have it */
    if (rc == 0)
        rc = conf_int(p, CONF_READ_TIMEOUT, &read_s, err);
    if (rc == 0)
        rc = conf_bool(p, CONF_HOSTED, &d->hosted, err);
    if (rc == 0)
        rc = conf_int(p, CONF_LOSS_GRACE, &d->grace_ms, err);
    if (rc == 0)
        rc = conf_int(p, CONF_NODE_ORDER, &d->rank_order_key, err);
    if (rc == 0 && !*p->run_id)
        rc = err_set(err, MUSTER_EINVAL, "The run id must be a non-empty string.");
    if (rc == 0 && p->local_addr && !utf8_valid(span_str(p->local_addr)))
        rc =
            err_set(err, MUSTER_EINVAL,
                    "the local address (--local-addr) is no UTF-8, and the other nodes "
                    "could not read the list of nodes with it; give this machine's "
                    "host name or IP address");
    if (rc == 0)
        rc = rdzv_settings_check(s, err);
    d->read_ms = (uint64_t)MAX_OF(MIN_OF(read_s, 31536000), 1) * 1000;
    return rc;
}

static void ignore(void *ctx)
{
    (void)ctx;
}

int rdzv_dynamic_create(uv_loop_t *loop, const struct rdzv_params *params,
                        const struct trace *trace, struct rdzv_backend *b,
                        struct rdzv_handler **out, struct muster_error *err)
{
    struct dynamic_handler *d = mem_calloc(1, sizeof *d);
    const char *share = getenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE");
    int rc = d ? params_copy(&d->params, params, err) : err_nomem(err);

    if (rc == 0)
        rc = read_settings(d, err);
    if (rc < 0) {
        if (d)
            params_fini(&d->params);
        mem_free(d);
        b->ops->close(b, ignore, NULL);
        return rc;
    }
    d->base = (struct rdzv_handler){ &dynamic_ops, loop };
    d->backend = b;
    d->trace = trace;
    d->share = !(share && strcmp(share, "1") == 0);
    d->pid = getpid();
    d->local_id = rdzv_next_local_id();
    (void)uv_timer_init(loop, &d->timer);
    d->timer.data = d;
    d->away_by_ms = d->linger_at_ms = d->runs_at_ms = MONO_NEVER;
    *out = &d->base;
    return 0;
}

void dynamic_free(struct dynamic_handler *d)
{
    rdzv_free(d->core);
    dynamic_forget_members(d);
    params_fini(&d->params);
    mem_free(d);
}
