/* job_http.c - net/http.h for simulated agents: HTTP between them and the model of an
 * etcd cluster (etcd_cluster.c). Answers go to the agent's loop, as libcurl's callbacks
 * do. A request that was sent may arrive after its node has given up. */
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

#define CONNECT_MS 3000u

static struct etcd_client *clients;    /* by the index of their node */
static struct cluster_call *all_calls; /* newest first */

/* ---- the cluster in a job ---- */

void job_etcd_start(struct job *j, const char *backend)
{
    clients = os_alloc(j->set.nodes * sizeof *clients);
    all_calls = NULL;
    cluster_start(strcmp(backend, "etcd-v3") != 0, j->etcd_members, rng_u64(&os.rng));
    for (size_t i = 0; i < j->set.nodes; i++)
        (void)rng_u64(&cluster.rng); /* so that older seeds play what they played */
}

bool job_etcd_fault(uint64_t for_us)
{
    static const enum etcd_fault faults[] = { ETCD_FAULT_KILL, ETCD_FAULT_STOP,
                                              ETCD_FAULT_CUT, ETCD_FAULT_COMPACT,
                                              ETCD_FAULT_STREAMS };

    if (!cluster.count)
        return false;
    cluster_fault(faults[os_random(0, ARRAY_LEN(faults))],
                  (size_t)os_random(0, cluster.count), for_us);
    return true;
}

bool job_etcd_flaps(void)
{
    return cluster.flaps;
}

void job_etcd_cut(const struct job_node *n, uint64_t until_t)
{
    if (cluster.count)
        clients[n->index].cut_t = MAX_OF(clients[n->index].cut_t, until_t);
}

/* ---- requests under way ---- */

/* What comes back to an agent. It waits in a queue until the agent's loop runs. */
struct back {
    struct back *next;
    struct cluster_call *call;
    struct http_call *asker; /* while it is in the queue */
    bool line;               /* of a stream; otherwise it ends the call */
    int status;              /* MUSTER_E* */
    const char *why;
    long code;
    uint64_t index;
    size_t n;
    uint8_t bytes[];
};

struct http_call {
    struct http *http;
    struct http_call *next;    /* of http, newest first */
    struct cluster_call *call; /* NULL: it has ended */
    bool cancelled;
    bool in_callback; /* on_data runs: http_cancel() must not free the call */
    http_done_cb on_done;
    http_data_cb on_data;
    void *ctx;
    struct buf body; /* of a stream: what on_data has not consumed */
};

struct http {
    uv_async_t async;
    struct etcd_client *client;
    struct http_call *calls; /* owned; each is freed when it has ended, or with this */
    struct back *first, *last;
    char local[INET_ADDRSTRLEN];
    void (*closed)(void *ctx);
    void *closed_ctx;
};

static uint64_t delay(void)
{
    return os.delay_us + (os.jitter_us ? rng_below(&cluster.rng, os.jitter_us) : 0);
}

/* Nothing passes to or from a node until its cut is over. */
static uint64_t arrival(const struct etcd_client *n)
{
    return MAX_OF(os.t, n->cut_t) + delay();
}

static struct back *back_new(struct cluster_call *c, int status, const char *why,
                             struct span body)
{
    struct back *b = os_alloc(sizeof *b + body.n);

    b->call = c;
    b->status = status;
    b->why = why;
    b->n = body.n;
    if (body.n)
        memcpy(b->bytes, body.p, body.n);
    return b;
}

/* Puts it into the queue of the agent that asked. */
static void back_deliver(struct back *b)
{
    struct cluster_call *c = b->call;
    struct http *h = c->asker->http;

    b->asker = c->asker;
    if (!b->line) {
        c->gone = true;
        c->asker->call = NULL;
        c->asker = NULL;
    }
    if (h->last)
        h->last->next = b;
    else
        h->first = b;
    h->last = b;
    (void)uv_async_send(&h->async);
}

static void on_back(void *arg, uint64_t n)
{
    struct back *b = arg;
    const unsigned bit = 1u << b->call->member;
    unsigned *opened = &b->call->client->opened;

    if (!b->call->asker)
        return; /* Its agent does not want it any more. */
    if (!b->line)
        *opened = b->status ? *opened & ~bit : *opened | bit;
    back_deliver(b);
}

static void send_back(struct back *b)
{
    struct cluster_call *c = b->call;

    c->down_t = MAX_OF(c->down_t, arrival(c->client));
    os_at(c->down_t, on_back, b, 0);
}

void call_answer(struct cluster_call *c, const struct etcd_response *r)
{
    struct back *b = back_new(c, 0, "", buf_span(&r->body));

    b->code = r->status;
    b->index = r->index;
    if (!c->gone)
        send_back(b);
}

void call_push(struct cluster_call *c, struct span line)
{
    struct back *b = back_new(c, 0, "", line);

    b->line = true;
    if (!c->gone)
        send_back(b);
}

static struct back *broken(struct cluster_call *c)
{
    return back_new(c, MUSTER_EHANGUP, "the connection broke", span_of("", 0));
}

void call_break(struct cluster_call *c)
{
    if (!c->gone)
        send_back(broken(c));
    c->gone = true;
}

void call_refuse(struct cluster_call *c)
{
    c->sent = false;
    send_back(back_new(c, MUSTER_EREFUSED, "connection refused", span_of("", 0)));
}

static void call_send(struct cluster_call *c, uint64_t timeout_ms)
{
    const struct etcd_client *n = c->client;
    const bool open = n->opened & 1u << c->member;
    struct back *late =
        back_new(c, MUSTER_ETIMEDOUT, "no answer in time", span_of("", 0));

    if (!open && n->cut_t > os.t) { /* It cannot even connect. */
        os_at(os.t + 1000 * MIN_OF(timeout_ms, (uint64_t)CONNECT_MS), on_back, late, 0);
        return;
    }
    c->sent = true;
    os_at(arrival(n) + (open ? 0 : 2 * delay()), cluster_on_request, c, 0);
    if (timeout_ms < UINT64_MAX / 2000)
        os_at(os.t + 1000 * timeout_ms, on_back, late, 0);
}

void job_etcd_reset(const struct job_node *n)
{
    if (!cluster.count)
        return;
    for (struct cluster_call *c = all_calls; c; c = c->next)
        if (c->client == &clients[n->index] && c->asker) {
            c->gone = true;
            os_at(os.t, on_back, broken(c), 0);
        }
    clients[n->index].opened = 0;
}

/* An agent begins or has ended: it gets no answers to an earlier agent's calls. */
void job_etcd_life(const struct job_node *n)
{
    if (!cluster.count)
        return;
    for (struct cluster_call *c = all_calls; c; c = c->next)
        if (c->client == &clients[n->index]) {
            c->asker = NULL;
            c->gone = true;
        }
    clients[n->index].opened = 0;
}

/* ---- http.h ---- */

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
    cb(ctx, b->status, b->status ? NULL : &answer, b->call->sent,
       b->status ? &err : NULL);
}

static void http_on_back(uv_async_t *async)
{
    struct http *h = async->data;

    while (h->first && !uv_is_closing((uv_handle_t *)async)) {
        struct back *b = h->first;

        h->first = b->next;
        if (!h->first)
            h->last = NULL;
        if (b->asker->cancelled) {
            if (!b->line)
                call_free(b->asker);
        } else if (b->line) {
            notify_line(b->asker, b);
        } else {
            notify_end(b->asker, b);
        }
    }
}

int http_new(uv_loop_t *loop, const struct http_tls *tls, struct http **out,
             struct muster_error *err)
{
    const struct job_node *n = os.current->arg;
    const struct in_addr ip = { htonl(os.current->machine->ip) };
    struct http *h = mem_calloc(1, sizeof *h);

    if (!h)
        return err_nomem(err);
    h->client = &clients[n->index];
    (void)inet_ntop(AF_INET, &ip, h->local, sizeof h->local);
    (void)uv_async_init(loop, &h->async, http_on_back);
    h->async.data = h;
    *out = h;
    return 0;
}

const char *http_local(const struct http *h)
{
    return h->client->opened ? h->local : "";
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

/* Answers with the list of members, which every member knows without the others. */
static void answer_members(struct cluster_call *c)
{
    char list[128] = "";
    struct back *b;

    for (size_t i = 0; i < cluster.count; i++)
        (void)snprintf(list + strlen(list), sizeof list - strlen(list),
                       "%shttp://etcd%zu:2379", i ? ", " : "", i);
    c->sent = cluster_member_ok(c->member);
    b = c->sent ? back_new(c, 0, "", span_str(list))
                : back_new(c, MUSTER_EREFUSED, "connection refused", span_of("", 0));
    b->code = 200;
    back_deliver(b);
}

/* The request as the cluster keeps it. */
static struct cluster_call *call_new(struct http_call *asker, const char *path,
                                     const struct http_request *req, size_t member)
{
    struct cluster_call *c = os_alloc(sizeof *c);
    uint8_t *body = os_alloc(req->body.n + 1);

    if (req->body.n)
        memcpy(body, req->body.p, req->body.n);
    c->client = asker->http->client;
    c->member = member % cluster.count;
    c->asker = asker;
    c->request = (struct etcd_request){ os_text("%s", req->method), os_text("%s", path),
                                        span_of(body, req->body.n) };
    c->next = all_calls;
    all_calls = c;
    return c;
}

int http_start(struct http *h, const struct http_request *req, http_done_cb on_end,
               http_data_cb on_data, void *ctx, struct http_call **out,
               struct muster_error *err)
{
    struct http_call *c = mem_calloc(1, sizeof *c);
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
    c->call = call_new(c, path, req, member);
    if (strcmp(path, "/v2/machines") == 0)
        answer_members(c->call);
    else
        call_send(c->call, req->timeout_ms);
    return 0;
}

void http_cancel(struct http_call *c)
{
    if (!c)
        return;
    c->cancelled = true;
    if (!c->call)
        return; /* Its end is in the queue, and http_on_back() will free it. */
    c->call->asker = NULL;
    c->call->gone = true; /* A watch ends; what the member has accepted is done. */
    c->call = NULL;
    for (const struct back *b = c->http->first; b; b = b->next)
        if (b->asker == c)
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
