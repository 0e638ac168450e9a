/* job_http.c - net/http.h for simulated agents: the model of an etcd cluster
 * (etcd_cluster.c) answers. The cluster has its own queue of events, which runs up to
 * the job's time whenever one of them is due. Answers go to the agent's loop, as
 * libcurl's callbacks do. */
#include <arpa/inet.h>
#include <assert.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "net/http.h"
#include "sim/etcd.h"
#include "sim/job.h"

static struct sim cluster;
static bool cluster_runs;

/* ---- the cluster and its time ---- */

static void on_due(void *arg, uint64_t n);

/* Runs the events of the cluster that are due, and schedules the next call. */
static void run_cluster(void)
{
    struct os_process *current = os.current;

    os.current = NULL; /* The memory of the cluster belongs to the simulator. */
    (void)sim_run(&cluster, os.t);
    os.current = current;
    if (cluster.heap_count)
        os_at(cluster.heap[0].t, on_due, NULL, 0);
}

static void on_due(void *arg, uint64_t n)
{
    (void)arg;
    (void)n;
    if (cluster_runs && cluster.heap_count && cluster.heap[0].t <= os.t)
        run_cluster();
}

void job_etcd_start(struct job *j, const char *backend)
{
    struct sim_config cfg = { .seed = rng_u64(&os.rng),
                              .delay_us = os.delay_us,
                              .jitter_us = os.jitter_us,
                              .quiet = true,
                              .many = true };

    (void)rdzv_settings_init(&cfg.settings, 1, 1);
    sim_init(&cluster, &cfg);
    for (size_t i = 0; i < j->set.nodes; i++)
        (void)sim_add(&cluster, SIM_OURS, j->nodes[i].machine->name);
    sim_etcd_start(&cluster, strcmp(backend, "etcd-v3") != 0, j->etcd_members);
    cluster_runs = true;
    run_cluster();
}

void job_etcd_stop(void)
{
    if (!cluster_runs)
        return;
    cluster_runs = false;
    for (size_t i = 0; i < cluster.count; i++)
        cluster.nodes[i].alive = false;
    sim_fini(&cluster);
}

bool job_etcd_fault(uint64_t for_us)
{
    static const enum etcd_fault faults[] = { ETCD_FAULT_KILL, ETCD_FAULT_STOP,
                                              ETCD_FAULT_CUT, ETCD_FAULT_COMPACT,
                                              ETCD_FAULT_STREAMS };

    if (!cluster_runs)
        return false;
    run_cluster();
    sim_etcd_fault(&cluster, faults[os_random(0, ARRAY_LEN(faults))],
                   (size_t)os_random(0, cluster.etcd->count), for_us);
    run_cluster();
    return true;
}

bool job_etcd_flaps(void)
{
    return cluster_runs && cluster.etcd->flaps;
}

void job_etcd_cut(const struct job_node *n, uint64_t until_t)
{
    if (cluster_runs)
        cluster.nodes[n->index].cut_t = MAX_OF(cluster.nodes[n->index].cut_t, until_t);
}

void job_etcd_reset(const struct job_node *n)
{
    if (!cluster_runs)
        return;
    run_cluster();
    sim_http_reset(&cluster.nodes[n->index]);
    run_cluster();
}

/* An agent begins or has ended: it gets no answers to an earlier agent's calls. */
void job_etcd_life(const struct job_node *n, bool alive)
{
    struct sim_node *at;

    if (!cluster_runs)
        return;
    at = &cluster.nodes[n->index];
    while (at->calls)
        sim_http_cancel(at->calls);
    at->alive = alive;
    at->boot++;
    at->opened = 0;
}

/* ---- http.h ---- */

struct http_call {
    struct http *http;
    struct http_call *next; /* of http, newest first */
    struct sim_call *call;  /* NULL: it has ended */
    bool cancelled;
    bool in_callback; /* on_data runs: http_cancel() must not free the call */
    http_done_cb on_done;
    http_data_cb on_data;
    void *ctx;
    struct buf body; /* of a stream: what on_data has not consumed */
};

/* An answer, or a line of a stream, that the agent has not got yet. */
struct back {
    struct back *next;
    struct http_call *call;
    bool line, sent;
    int status;
    long code;
    uint64_t index;
    char why[100];
    size_t n;
    uint8_t bytes[];
};

struct http {
    uv_async_t async;
    struct sim_node *node;
    struct http_call *calls; /* owned; each is freed when it has ended, or with this */
    struct back *first, *last;
    char local[INET_ADDRSTRLEN];
    void (*closed)(void *ctx);
    void *closed_ctx;
};

static void call_free(struct http_call *c)
{
    struct http_call **at = &c->http->calls;

    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    buf_fini(&c->body);
    mem_free(c);
}

static void notify_line(struct http_call *c, const struct back *b)
{
    struct http_answer sofar = { .status = 200 };

    if (buf_append(&c->body, b->bytes, b->n) < 0 || buf_u8(&c->body, '\n') < 0)
        return;
    sofar.body = buf_span(&c->body);
    c->in_callback = true;
    const size_t used = c->on_data(c->ctx, &sofar);
    c->in_callback = false;
    if (!c->cancelled)
        buf_consume(&c->body, used);
}

static void notify_end(struct http_call *c, const struct back *b)
{
    const http_done_cb cb = c->on_done;
    void *ctx = c->ctx;
    struct http_answer answer = { b->code, b->index, span_of(b->bytes, b->n) };
    struct muster_error err = { 0 };

    if (b->status)
        (void)err_set(&err, b->status, "%s", b->why);
    call_free(c);
    cb(ctx, b->status, b->status ? NULL : &answer, b->sent, b->status ? &err : NULL);
}

static void on_back(uv_async_t *async)
{
    struct http *h = async->data;

    while (h->first && !uv_is_closing((uv_handle_t *)async)) {
        struct back *b = h->first;

        h->first = b->next;
        if (!h->first)
            h->last = NULL;
        if (b->call->cancelled) {
            if (!b->line)
                call_free(b->call);
        } else if (b->line) {
            notify_line(b->call, b);
        } else {
            notify_end(b->call, b);
        }
    }
}

static void push(struct http_call *c, bool line, int status,
                 const struct etcd_http *http, bool sent, const char *why)
{
    const size_t n = http ? http->body.n : 0;
    struct back *b = os_alloc(sizeof *b + n);
    struct http *h = c->http;

    b->call = c;
    b->line = line;
    b->status = status;
    b->sent = sent;
    b->n = n;
    if (http) {
        b->code = http->status;
        b->index = http->index;
        if (n)
            memcpy(b->bytes, http->body.p, n);
    }
    (void)snprintf(b->why, sizeof b->why, "%.90s", why ? why : "");
    if (h->last)
        h->last->next = b;
    else
        h->first = b;
    h->last = b;
    (void)uv_async_send(&h->async);
}

static void on_done(void *ctx, int status, const struct etcd_http *http, bool sent,
                    const struct muster_error *err)
{
    struct http_call *c = ctx;

    c->call = NULL;
    push(c, false, status, http, sent, err ? err->text : NULL);
}

static void on_line(void *ctx, struct span line)
{
    const struct etcd_http http = { 200, 0, line };

    push(ctx, true, 0, &http, true, NULL);
}

int http_new(uv_loop_t *loop, const struct http_tls *tls, struct http **out,
             struct muster_error *err)
{
    const struct job_node *n = os.current->arg;
    const struct in_addr ip = { htonl(os.current->machine->ip) };
    struct http *h = mem_calloc(1, sizeof *h);

    (void)tls;
    if (!h)
        return err_nomem(err);
    h->node = &cluster.nodes[n->index];
    (void)inet_ntop(AF_INET, &ip, h->local, sizeof h->local);
    (void)uv_async_init(loop, &h->async, on_back);
    h->async.data = h;
    *out = h;
    return 0;
}

const char *http_local(const struct http *h)
{
    return h->node->opened ? h->local : "";
}

/* The member and the path of a URL like "http://etcd1:2379/v3/kv/range". */
static const char *path_of(const char *url, size_t *member)
{
    const char *host = strstr(url, "://"), *path;

    host = host ? host + 3 : url;
    path = strchr(host, '/');
    *member = strncmp(host, "etcd", 4) == 0 ? (size_t)(host[4] - '0') : 0;
    return path ? path : "/";
}

static const char *known_method(const char *method)
{
    static const char *const methods[] = { "GET", "PUT", "POST", "DELETE" };

    for (size_t i = 0; i < ARRAY_LEN(methods); i++)
        if (strcmp(method, methods[i]) == 0)
            return methods[i];
    return "GET";
}

/* Answers with the list of members, which every member knows without the others. */
static void notify_members(struct http_call *c, size_t member)
{
    char list[128] = "";
    struct etcd_http http = { 200, 0, { NULL, 0 } };

    for (size_t i = 0; i < cluster.etcd->count; i++)
        (void)snprintf(list + strlen(list), sizeof list - strlen(list),
                       "%shttp://etcd%zu:2379", i ? ", " : "", i);
    http.body = span_str(list);
    if (sim_etcd_member_ok(&cluster, member % cluster.etcd->count))
        push(c, false, 0, &http, true, NULL);
    else
        push(c, false, MUSTER_EREFUSED, NULL, false, "connection refused");
}

int http_start(struct http *h, const struct http_request *req, http_done_cb on_end,
               http_data_cb on_data, void *ctx, struct http_call **out,
               struct muster_error *err)
{
    struct http_call *c = mem_calloc(1, sizeof *c);
    struct os_process *current = os.current;
    struct etcd_msg m;
    size_t member;
    const char *path = path_of(req->url, &member);

    if (!c)
        return err_nomem(err);
    *c = (struct http_call){
        .http = h, .next = h->calls, .on_done = on_end, .on_data = on_data, .ctx = ctx
    };
    buf_init(&c->body, SIZE_MAX);
    h->calls = c;
    *out = c;
    if (strcmp(path, "/v2/machines") == 0) {
        notify_members(c, member);
        return 0;
    }
    run_cluster();
    os.current = NULL;
    etcd_msg_init(&m);
    m.method = known_method(req->method);
    m.type = req->type ? "" : NULL;
    sim_must(buf_append(&m.path, path, strlen(path) + 1));
    sim_must(buf_append_span(&m.body, req->body));
    c->call = sim_http(h->node, member % cluster.etcd->count, &m, req->timeout_ms,
                       on_done, on_data ? on_line : NULL, c);
    etcd_msg_fini(&m);
    os.current = current;
    run_cluster();
    return 0;
}

void http_cancel(struct http_call *c)
{
    struct os_process *current = os.current;

    if (!c)
        return;
    c->cancelled = true;
    if (!c->call)
        return; /* Its end is in the queue, and on_back() will free it. */
    os.current = NULL;
    sim_http_cancel(c->call);
    os.current = current;
    c->call = NULL;
    for (const struct back *b = c->http->first; b; b = b->next)
        if (b->call == c)
            return; /* The queue still has lines of it: http_on_closed() frees it. */
    if (!c->in_callback)
        call_free(c);
}

static void http_on_closed(uv_handle_t *handle)
{
    struct http *h = handle->data;
    void (*closed)(void *) = h->closed;
    void *ctx = h->closed_ctx;

    while (h->calls)
        call_free(h->calls);
    mem_free(h);
    closed(ctx);
}

void http_close(struct http *h, void (*cb)(void *ctx), void *ctx)
{
    struct http_call *next;

    h->closed = cb;
    h->closed_ctx = ctx;
    for (struct http_call *c = h->calls; c; c = next) {
        next = c->next;
        if (!c->cancelled)
            http_cancel(c);
    }
    uv_close((uv_handle_t *)&h->async, http_on_closed);
}
