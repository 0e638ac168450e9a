/* dynamic_open.c - how a dynamic handler begins: its parameters, its name among the
 * nodes, and opening its backend. */
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

/* Our name in a state that all nodes read and write. Ranks follow the order of the
 * names in it, so our place in that order has to be part of our name. */
static struct rdzv_node core_name(const struct dynamic_handler *d,
                                  char ordered[RDZV_ORDERED_SIZE])
{
    struct rdzv_node self = { span_str(d->self.addr), d->self.pid, d->self.local_id };

    if (d->rank_order_key >= 0)
        self.addr = rdzv_ordered_addr(self.addr, (uint64_t)d->rank_order_key, ordered);
    return self;
}

/* A backend with presence reports the end of a node sooner than heartbeats do. */
void dynamic_present(struct dynamic_handler *d)
{
    char ordered[RDZV_ORDERED_SIZE];
    const struct rdzv_node self = core_name(d, ordered);
    char text[128]; /* as large as the core's, since the two are compared */

    if (d->backend->ops->presence)
        d->backend->ops->presence(d->backend, rdzv_node_text(&self, text, sizeof text),
                                  dynamic_peer_gone, dynamic_cut_off, d);
}

static void publish_own_address(struct dynamic_handler *d)
{
    char addr[1025];

    if (!d->backend->ops->own_addr ||
        !d->backend->ops->own_addr(d->backend, addr, sizeof addr))
        return;
    rdzv_master_set_addr(d->master, addr);
    rdzv_log_nameless(d->log, d->self.addr, addr);
}

static void on_backend_open(void *ctx, int status, const struct muster_error *err)
{
    struct dynamic_handler *d = ctx;

    if (handler_ends(&d->base))
        return;
    if (status == 0 && !dynamic_be_member(d))
        dynamic_present(d);
    if (status == 0 && !d->self.resolves)
        publish_own_address(d);
    handler_feed_error(&d->base, LIFE_OPENED, status < 0 ? err : NULL);
}

static int make_core(struct dynamic_handler *d, struct muster_error *err)
{
    char ordered[RDZV_ORDERED_SIZE];
    struct rdzv *core;
    uint64_t seed;
    const struct rdzv_config cfg = {
        .run_id = d->params.run_id,
        .self = core_name(d, ordered),
        .settings = d->settings,
        .seed = uv_random(NULL, NULL, &seed, sizeof seed, 0, NULL) == 0 ? seed
                                                                        : uv_hrtime(),
        .log = d->log,
    };
    const int rc = rdzv_new(&cfg, &core, err);

    if (rc == 0) {
        rdzv_free(d->core);
        d->core = core;
    }
    return rc;
}

int dynamic_rename(struct dynamic_handler *d, struct muster_error *err)
{
    uint32_t id;

    if (uv_random(NULL, NULL, &id, sizeof id, 0, NULL) != 0)
        id = (uint32_t)uv_hrtime();
    d->self.local_id = 1000 + id % 1000000000u;
    return make_core(d, err);
}

static void open_with_name(struct dynamic_handler *d)
{
    const struct rdzv_master_opts opts = {
        .run_id = d->params.run_id,
        .addr = d->self.where,
        .bind = conf_text(&d->params, CONF_BIND),
        .auth = d->params.auth,
        .many = d->params.max_nodes > 1,
        .share = d->share,
        .timeout_ms = d->read_ms,
        .log = d->log,
    };
    struct muster_error err;
    int rc = make_core(d, &err);

    if (rc == 0)
        rc = rdzv_master_new(d->base.handler.loop, &opts, &d->master, &err);
    if (rc < 0) {
        handler_feed_error(&d->base, LIFE_OPENED, &err);
        return;
    }
    d->open_by_ms = clock_mono_ms() + d->read_ms;
    d->backend->ops->open(d->backend, on_backend_open, d);
}

/* Whether this is a job of one node without an address of another machine: its workers'
 * store is for this machine alone, and so is the address that they get. */
static bool is_local_job(const struct dynamic_handler *d)
{
    struct endpoint at;

    if (d->params.max_nodes != 1 || d->params.local_addr)
        return false;
    if (dynamic_is_alone(d) || endpoint_parse(d->params.endpoint, 0, &at, NULL) < 0)
        return true; /* The endpoint is the path of a store in a file. */
    return strcmp(at.host, "localhost") == 0 || strncmp(at.host, "127.", 4) == 0 ||
           strcmp(at.host, "::1") == 0;
}

static void on_name(void *ctx, void *data)
{
    struct dynamic_handler *d = ctx;
    const struct rdzv_fqdn *f = data;

    d->naming = NULL;
    d->self.resolves = f && f->resolves;
    if (f) {
        (void)snprintf(d->self.addr, sizeof d->self.addr, "%s", f->name);
    } else {
        rdzv_hostname(d->self.addr, sizeof d->self.addr);
        log_line(
            d->log, LOG_WARN, AT_RENDEZVOUS,
            "the resolver did not give this machine's full name within %u s; to the "
            "other nodes it is '%s' (--local-addr changes that)",
            RDZV_NAME_MS / 1000, d->self.addr);
    }
    (void)snprintf(d->self.where, sizeof d->self.where, "%s",
                   is_local_job(d) ? "127.0.0.1" : d->self.addr);
    open_with_name(d);
}

bool dynamic_is_alone(const struct dynamic_handler *d)
{
    const char *colon = strrchr(d->params.endpoint, ':');

    return d->params.max_nodes == 1 && colon && strcmp(colon, ":0") == 0;
}

void dynamic_open(struct handler_base *s)
{
    struct dynamic_handler *d = dynamic_of(s);
    struct rdzv_fqdn *job, own;

    d->self.resolves = true;
    if (d->params.local_addr) {
        (void)snprintf(d->self.addr, sizeof d->self.addr, "%s", d->params.local_addr);
        (void)snprintf(d->self.where, sizeof d->self.where, "%s", d->self.addr);
        open_with_name(d);
        return;
    }
    if (rdzv_fqdn_quick(&own)) {
        on_name(d, &own);
        return;
    }
    if (dynamic_is_alone(d)) { /* Only this machine has to reach us: do not ask DNS. */
        rdzv_hostname(d->self.addr, sizeof d->self.addr);
        (void)snprintf(d->self.where, sizeof d->self.where, "127.0.0.1");
        open_with_name(d);
        return;
    }
    job = mem_calloc(1, sizeof *job);
    if (!job || blocking_call_run(s->handler.loop, rdzv_fqdn_resolve, job, RDZV_NAME_MS,
                                  on_name, d, &d->naming, NULL) < 0) {
        mem_free(job);
        on_name(d, NULL);
    }
}

/* ---- Settings ---- */

static char *settings_key(const struct dynamic_handler *d)
{
    return mem_printf("muster.rendezvous.%s.settings", d->params.run_id);
}

static void ignore_reply(void *ctx, int status, const struct c10d_reply *reply,
                         const struct muster_error *err)
{
    (void)ctx;
    (void)status;
    (void)reply;
    (void)err;
}

/* Replaces the published settings, from which ours differ, by ours: a node that has
 * seen its own there looks again, and learns of ours. Each node does so once. */
static void show_settings(struct dynamic_handler *d)
{
    char *key = settings_key(d);
    struct buf ours;

    buf_init(&ours, 4096);
    if (key && rdzv_settings_print(&d->settings, &ours) == 0)
        (void)async_store_set(d->store, span_str(key), buf_span(&ours), d->read_ms,
                              ignore_reply, NULL, NULL);
    buf_fini(&ours);
    mem_free(key);
}

static void on_settings(void *ctx, int status, const struct c10d_reply *reply,
                        const struct muster_error *err)
{
    struct dynamic_handler *d = ctx;
    struct muster_error why;
    bool other_nnodes;

    (void)err; /* Not every store can compare and set. With one that cannot, no node is
                  told. */
    if (status < 0 || d->settings_notified)
        return;
    other_nnodes = rdzv_settings_nnodes_differ(&d->settings, reply->value);
    if (rdzv_settings_compare(&d->settings, reply->value, &why) == 0)
        return;
    d->settings_notified = true;
    log_line(d->log, LOG_WARN, AT_RENDEZVOUS, "run '%s': %s", d->params.run_id,
             why.text);
    if (other_nnodes && d->store)
        show_settings(d);
}

void dynamic_settings(struct dynamic_handler *d)
{
    char *key = settings_key(d);
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
    s->ours_only = strcmp(p->backend, "etcd-v3") == 0; /* torch has no such backend */
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
        rc = err_set(
            err, MUSTER_EINVAL,
            "the local address (--local-addr) is not UTF-8, and the other nodes "
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

/* Tells this process from another one with the same name. */
static uint64_t nonce_of(const struct dynamic_handler *d)
{
    uint64_t n;

    if (uv_random(NULL, NULL, &n, sizeof n, 0, NULL) != 0)
        n = uv_hrtime() ^ (uint64_t)d->self.pid << 40;
    return n;
}

int rdzv_dynamic_create(uv_loop_t *loop, const struct rdzv_params *params,
                        const struct log *log, struct rdzv_backend *b,
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
    handler_base_init(&d->base, loop, &dynamic_ops, &dynamic_impl);
    life_init(&d->base.life, d->params.run_id, log, rdzv_dead_after_ms(&d->settings),
              b->ops->other_connections && !dynamic_is_alone(d));
    d->backend = b;
    d->log = log;
    d->share = !(share && strcmp(share, "1") == 0);
    d->self.pid = getpid();
    d->base.handler.nonce = nonce_of(d);
    d->self.local_id = rdzv_next_local_id();
    d->open_by_ms = d->runs.at_ms = MONO_NEVER;
    *out = &d->base.handler;
    return 0;
}
