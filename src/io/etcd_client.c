/* etcd_client.c - see etcd_client.h: the endpoints, who we are to them, open and close.
 * What becomes of a call is in etcd_call.c. */
#include "io/etcd_client.h"

#include "base/base64.h"
#include "base/err.h"
#include "base/mem.h"
#include "io/etcd_client_int.h"

/* ---- For calls and streams ---- */

struct http *etcd_client_http(struct etcd_client *c)
{
    return c->http;
}

const struct trace *etcd_client_trace(const struct etcd_client *c)
{
    return c->trace;
}

size_t etcd_client_current(const struct etcd_client *c)
{
    return c->current;
}

const char *etcd_client_url(const struct etcd_client *c, size_t at)
{
    return c->urls[at];
}

void etcd_client_failed(struct etcd_client *c, size_t at)
{
    if (c->current == at)
        c->current = (at + 1) % c->count;
}

const char *etcd_client_authorization(const struct etcd_client *c)
{
    return c->authorization;
}

bool etcd_client_needs_token(const struct etcd_client *c)
{
    return c->api == ETCD_V3 && c->user && !c->authorization;
}

void etcd_client_forget_token(struct etcd_client *c)
{
    mem_free(c->authorization);
    c->authorization = NULL;
}

uint64_t etcd_client_pause(struct etcd_client *c, unsigned tries)
{
    return etcd_pause_ms(&c->rng, tries);
}

uv_loop_t *etcd_client_loop(const struct etcd_client *c)
{
    return c->loop;
}

const char *etcd_client_where(const struct etcd_client *c)
{
    return c->where;
}

const char *etcd_client_local(const struct etcd_client *c)
{
    return http_local(c->http);
}

bool etcd_client_closing(const struct etcd_client *c)
{
    return c->closing;
}

static void client_free(struct etcd_client *c)
{
    for (size_t i = 0; i < c->count; i++)
        mem_free(c->urls[i]);
    mem_free(c->urls);
    mem_free(c->where);
    mem_free(c->user);
    mem_free(c->password);
    mem_free(c->authorization);
    mem_free(c);
}

void etcd_client_hold(struct etcd_client *c)
{
    c->holds++;
}

void etcd_client_release(struct etcd_client *c)
{
    c->holds--;
    if (!c->closing || c->holds)
        return;
    if (c->on_closed)
        c->on_closed(c->closed_ctx);
    client_free(c);
}

/* ---- Open and close ---- */

int etcd_client_add(struct etcd_client *c, struct span url)
{
    char **urls;
    char *copy;

    while (url.n && url.p[url.n - 1] == '/')
        url.n--;
    for (size_t i = 0; i < c->count; i++)
        if (span_eq(span_str(c->urls[i]), url))
            return 0;
    urls = mem_realloc_array(c->urls, c->count + 1, sizeof *urls);
    if (!urls)
        return MUSTER_ENOMEM;
    c->urls = urls;
    copy = mem_strndup((const char *)url.p, url.n);
    if (!copy)
        return MUSTER_ENOMEM;
    c->urls[c->count++] = copy;
    return 0;
}

static int copy_opts(struct etcd_client *c, const struct etcd_client_opts *o)
{
    struct buf where;
    int rc = 0;

    buf_init(&where, SIZE_MAX);
    for (size_t i = 0; rc == 0 && i < o->count; i++) {
        rc = etcd_client_add(c, span_str(o->urls[i]));
        if (rc == 0)
            rc = buf_printf(&where, "%s%s", i ? "," : "", o->urls[i]);
    }
    if (rc == 0)
        c->where = mem_strndup((const char *)buf_data(&where), buf_len(&where));
    buf_fini(&where);
    if (o->user)
        c->user = mem_strdup(o->user);
    if (o->password)
        c->password = mem_strdup(o->password);
    return rc == 0 && c->where && !c->user == !o->user && !c->password == !o->password
               ? 0
               : MUSTER_ENOMEM;
}

/* v2 knows no tokens: name and password go with each request. */
static int basic(struct etcd_client *c)
{
    struct buf b;
    char *plain = mem_printf("%s:%s", c->user, c->password ? c->password : "");
    int rc = plain ? 0 : MUSTER_ENOMEM;

    buf_init(&b, SIZE_MAX);
    if (rc == 0)
        rc = base64_encode(&b, span_str(plain));
    if (rc == 0)
        c->authorization =
            mem_printf("Basic %.*s", (int)buf_len(&b), (const char *)buf_data(&b));
    buf_fini(&b);
    mem_free(plain);
    return c->authorization ? 0 : MUSTER_ENOMEM;
}

int etcd_client_new(uv_loop_t *loop, const struct etcd_client_opts *opts,
                    struct etcd_client **out, struct muster_error *err)
{
    struct etcd_client *c = mem_calloc(1, sizeof *c);
    int rc;

    if (!c)
        return err_nomem(err);
    c->loop = loop;
    c->api = opts->api;
    c->attempt_ms = opts->attempt_ms ? opts->attempt_ms : ETCD_ATTEMPT_MS;
    c->trace = opts->trace;
    rng_init(&c->rng, opts->seed);
    rc = copy_opts(c, opts);
    if (rc == 0 && c->api == ETCD_V2 && c->user)
        rc = basic(c);
    if (rc < 0)
        err_nomem(err);
    else
        rc = http_new(loop, &opts->tls, &c->http, err); /* which knows why not */
    if (rc < 0) {
        client_free(c);
        return rc;
    }
    etcd_client_hold(c); /* for http */
    *out = c;
    return 0;
}

static void on_http_closed(void *ctx)
{
    etcd_client_release(ctx);
}

void etcd_client_close(struct etcd_client *c, void (*cb)(void *ctx), void *ctx)
{
    c->closing = true;
    c->on_closed = cb;
    c->closed_ctx = ctx;
    while (c->calls)
        etcd_call_cancel(c->calls);
    http_close(c->http, on_http_closed, c);
}
