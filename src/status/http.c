/* http.c - see http.h.
 *
 * libmicrohttpd has no thread here: our loop watches its epoll descriptor, and
 * MHD_run() does the work. A connection that has to wait is suspended, and resumed when
 * there is something for it:
 *
 *   - a request for /status.json, /metrics or / waits until what is known of the other
 *     nodes is recent (status_when_recent), a second at most; all that wait share one
 *     question to the nodes, and the JSON of a large job is kept for a moment;
 *   - a request for /lines.json or /stacks.json waits for the node that has the rank,
 *     or for all of them;
 *   - a viewer (/events) waits for the next news. News come when the job changes, at
 *     most ten times a second, and else once a second. All viewers share one text; who
 *     has not read the last one yet misses the next, and then gets the whole history.
 *
 * Rules: who may see what is decided in core/http_rules.c, before anything is looked
 * up. A client that sends its request slowly is cut off after REQUEST_MS, however often
 * it sends a byte. When the job ends viewers are sent how it ended before the sockets
 * close, as far as that goes without waiting. */
#include "status/http.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/err.h"
#include "base/list.h"
#include "base/mem.h"
#include "loop/clock.h"
#include "loop/handle_set.h"
#include "net/listen.h"
#include "net/peer_uid.h"
#include "status/core/put.h"
#include "status/mhd_dl.h"
#include "status/page.h"

#define CONNECTIONS_MAX 512u
#define VIEWERS_MAX     256u
#define MEMORY_MAX      (16u << 10) /* of one connection, for headers and output */
#define IDLE_S          15u         /* how long a connection may send nothing */
#define REQUEST_MS      20000u      /* how long a client may take to send a request */
#define CHECK_MS        2000u /* between two checks for clients that take longer */
#define LAST_TURNS      64    /* turns of the server to send the last news */
#define NEWS_MS         1000u /* between two news when nothing happened */
#define NEWS_LEAST_MS   100u  /* between any two */
#define CACHE_MS        1u    /* per node: how long a status.json is cached */

/* News for viewers. All of them share one. */
struct event {
    unsigned refs;
    struct buf text;
};

struct connection {
    struct status_http *http;
    struct connection *prev, *next;
    struct MHD_Connection *mhd;
    int fd;
    uint64_t since_ms; /* when it was opened, or its last request ended */
    bool same_user, busy;
};

struct request {
    struct status_http *http;
    struct request *prev, *next;
    struct MHD_Connection *mhd;
    struct connection *connection;
    bool asked, ready, suspended;
    bool lines_asked; /* an answer of lines or stacks is still to come */
    bool of_rank;     /* it is text, the lines of a rank */
    bool gone;        /* the connection has ended: free this when that answer comes */
    struct buf lines;
    /* The rest is for viewers. */
    bool viewer, seen;   /* seen: has been sent the whole history */
    struct event *event; /* being sent */
    size_t sent;
};

struct status_http {
    uv_loop_t *loop;
    struct status *status;
    struct MHD_Daemon *daemon;
    int fd;
    uv_poll_t poll;
    uv_timer_t timer; /* for libmicrohttpd, and for our check for slow requests */
    uv_timer_t news;
    struct handle_set closing;
    struct {
        struct connection *first, *last;
    } connections;
    struct {
        struct request *first, *last;
    } requests;
    size_t viewers;
    size_t nodes;                      /* of the job, in the last news */
    uint64_t checked_ms;               /* the last check for slow requests */
    uint64_t sent_ms;                  /* when the last news was sent */
    uint64_t sent_entry;               /* the newest entry of the record in it */
    struct {                           /* the last status.json of the whole job */
        struct MHD_Response *response; /* owned; NULL: none, or something changed */
        uint64_t stamp, until_ms;
    } cache;
    bool notifying, running, again;
    char key[65];
    char url[256];
};

static void http_run(struct status_http *h);

/* ---- answers ---- */

static struct MHD_Response *make_response(const char *type, struct buf *body)
{
    struct MHD_Response *m = MHD_create_response_from_buffer(
        buf_error(body) ? 0 : buf_len(body), (void *)(uintptr_t)buf_data(body),
        MHD_RESPMEM_MUST_COPY);

    buf_fini(body);
    if (!m)
        return NULL;
    MHD_add_response_header(m, "Content-Type", type);
    MHD_add_response_header(m, "Cache-Control", "no-store");
    MHD_add_response_header(m, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(m, "Referrer-Policy", "no-referrer");
    MHD_add_response_header(m, "Content-Security-Policy", page_policy);
    return m;
}

static enum MHD_Result http_respond(struct request *r, unsigned code, const char *type,
                                    struct buf *body)
{
    const bool bad = buf_error(body) != 0;
    struct MHD_Response *m = make_response(type, body);
    enum MHD_Result rc;

    if (!m)
        return MHD_NO;
    if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(m, "Allow", "GET, HEAD");
    if (code == MHD_HTTP_UNAUTHORIZED)
        MHD_add_response_header(m, "WWW-Authenticate", "Bearer realm=\"muster\"");
    rc = MHD_queue_response(r->mhd, bad ? MHD_HTTP_INTERNAL_SERVER_ERROR : code, m);
    MHD_destroy_response(m);
    return rc;
}

static enum MHD_Result respond_text(struct request *r, unsigned code, const char *text)
{
    struct buf b;

    buf_init(&b, SIZE_MAX);
    put_str(&b, text);
    return http_respond(r, code, "text/plain; charset=utf-8", &b);
}

static const char *request_header(struct request *r, const char *name)
{
    return MHD_lookup_connection_value(r->mhd, MHD_HEADER_KIND, name);
}

static bool accepts_openmetrics(struct request *r)
{
    const char *accept = request_header(r, "Accept");

    return accept && strstr(accept, "application/openmetrics-text");
}

static enum MHD_Result answer_metrics(struct request *r, const struct job_status *j,
                                      struct buf *b)
{
    const bool open = accepts_openmetrics(r);

    job_status_metrics(b, j, open);
    return http_respond(
        r, MHD_HTTP_OK,
        open ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
             : "text/plain; version=0.0.4; charset=utf-8",
        b);
}

static uint32_t node_asked_for(struct request *r)
{
    const char *text =
        MHD_lookup_connection_value(r->mhd, MHD_GET_ARGUMENT_KIND, "node");

    return text ? (uint32_t)strtoul(text, NULL, 10) : 0;
}

static void cache_drop(struct status_http *h)
{
    if (h->cache.response)
        MHD_destroy_response(h->cache.response);
    h->cache.response = NULL;
}

static bool cache_is_fresh(const struct status_http *h)
{
    return h->cache.response && h->cache.stamp == status_stamp(h->status) &&
           clock_mono_ms() < h->cache.until_ms;
}

/* The answer about the whole job is cached: for 10,000 nodes it has 3 MB, and takes
 * 20 ms to make. */
static enum MHD_Result answer_status(struct request *r, const struct job_status *j,
                                     struct buf *b)
{
    struct status_http *h = r->http;
    const uint32_t node = node_asked_for(r);

    job_status_json(b, j, node, !node);
    put_str(b, "\n");
    if (node || buf_error(b))
        return http_respond(r, MHD_HTTP_OK, "application/json", b);
    cache_drop(h);
    h->cache.response = make_response("application/json", b);
    h->cache.stamp = status_stamp(h->status);
    h->cache.until_ms = clock_mono_ms() + j->count * CACHE_MS;
    return h->cache.response
               ? MHD_queue_response(r->mhd, MHD_HTTP_OK, h->cache.response)
               : MHD_NO;
}

static enum MHD_Result answer_page(struct request *r, const struct job_status *j,
                                   struct buf *b)
{
    put_str(b, page_before_title);
    put_html(b, j->run_id);
    put_str(b, page_before_table);
    job_status_table(b, j);
    put_str(b, page_after_table);
    return http_respond(r, MHD_HTTP_OK, "text/html; charset=utf-8", b);
}

static enum MHD_Result answer_trace(struct request *r, const struct job_status *j,
                                    struct buf *b)
{
    job_status_trace(b, j);
    return http_respond(r, MHD_HTTP_OK, "application/json", b);
}

static enum MHD_Result answer_health(struct request *r, const struct job_status *j,
                                     struct buf *b)
{
    const bool well = j->state != JOB_FAILED && j->state != JOB_STOPPED;

    put_str(b, well ? "ok\n" : "the job has failed\n");
    return http_respond(r, well ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE,
                        "text/plain; charset=utf-8", b);
}

static const struct route {
    const char *path;
    enum MHD_Result (*answer)(struct request *r, const struct job_status *j,
                              struct buf *b);
    bool recent; /* the other nodes are asked first */
    bool open;   /* for everybody, as it only says whether the job is well */
} routes[] = {
    { "/", answer_page, true, false },
    { "/status.json", answer_status, true, false },
    { "/metrics", answer_metrics, true, false },
    { "/trace.json", answer_trace, false, false },
    { "/healthz", answer_health, false, true },
};

static enum MHD_Result http_answer(struct request *r, const struct route *route)
{
    struct job_status j;
    enum MHD_Result rc;
    struct buf b;

    if (route->answer == answer_status && !node_asked_for(r) && cache_is_fresh(r->http))
        return MHD_queue_response(r->mhd, MHD_HTTP_OK, r->http->cache.response);
    if (status_now(r->http->status, &j) != 0)
        return respond_text(r, MHD_HTTP_INTERNAL_SERVER_ERROR, "out of memory\n");
    buf_init(&b, SIZE_MAX);
    rc = route->answer(r, &j, &b);
    job_status_fini(&j);
    return rc;
}

/* ---- waiting ---- */

static void request_resume(struct request *r)
{
    if (!r->suspended)
        return;
    r->suspended = false;
    MHD_resume_connection(r->mhd);
}

static void on_recent(void *ctx)
{
    struct request *r = ctx;

    r->ready = true;
    if (r->suspended) {
        request_resume(r);
        http_run(r->http);
    }
}

/* True if the answers of the nodes are not here yet: the connection is suspended, and
 * MHD calls us again when it is resumed. */
static bool wait_for_recent(struct request *r)
{
    if (r->ready)
        return false;
    if (!r->asked) {
        r->asked = true;
        if (status_when_recent(r->http->status, on_recent, r) != 0)
            r->ready = true; /* Too many wait: answer with what is known. */
    }
    if (r->ready)
        return false;
    r->suspended = true;
    MHD_suspend_connection(r->mhd);
    return true;
}

/* ---- last lines of a rank, stacks of all ranks ---- */

static void http_on_answer(void *ctx, struct span text, const char *why)
{
    struct request *r = ctx;

    r->lines_asked = false;
    r->ready = true;
    if (r->gone) { /* The client has closed its connection. */
        mem_free(r);
        return;
    }
    buf_init(&r->lines, SIZE_MAX);
    if (why || r->of_rank) {
        put_str(&r->lines, why ? "{\"error\": " : "{\"lines\": ");
        put_json(&r->lines, why ? span_str(why) : text);
        put_str(&r->lines, "}\n");
    } else {
        (void)buf_append_span(&r->lines, text); /* It is JSON already. */
    }
    if (r->suspended) {
        request_resume(r);
        http_run(r->http);
    }
}

/* rc: what asking has returned. */
static enum MHD_Result when_answered(struct request *r, int rc, const char *sorry)
{
    if (rc != 0) {
        r->lines_asked = false;
        return respond_text(r, MHD_HTTP_SERVICE_UNAVAILABLE, sorry);
    }
    if (r->ready)
        return http_respond(r, MHD_HTTP_OK, "application/json", &r->lines);
    r->suspended = true;
    MHD_suspend_connection(r->mhd);
    return MHD_YES;
}

/* True the first time that MHD calls us for the request. */
static bool asks_now(struct request *r)
{
    const bool now = !r->asked;

    r->asked = true;
    r->lines_asked = r->lines_asked || now;
    return now;
}

static enum MHD_Result answer_lines(struct request *r)
{
    const char *text =
        MHD_lookup_connection_value(r->mhd, MHD_GET_ARGUMENT_KIND, "rank");

    if (!text)
        return respond_text(r, MHD_HTTP_BAD_REQUEST, "name a rank: ?rank=N\n");
    r->of_rank = true;
    const int rc = asks_now(r) ? status_lines(r->http->status, strtoll(text, NULL, 10),
                                              http_on_answer, r)
                               : 0;
    return when_answered(r, rc, "out of memory\n");
}

/* Only the job's user on this machine may ask for them: the key only gives the right to
 * look at the page. A page of another site may not ask in his name: it could not read
 * the answer, but reading stacks stops the workers for a moment each time. */
static enum MHD_Result answer_stacks(struct request *r)
{
    const struct http_origin from = { .host = request_header(r, "Host"),
                                      .site = request_header(r, "Sec-Fetch-Site"),
                                      .origin = request_header(r, "Origin"),
                                      .agent = request_header(r, "User-Agent"),
                                      .from_our_page = request_header(r, "X-Muster") };

    if (!r->connection || !r->connection->same_user)
        return respond_text(r, MHD_HTTP_FORBIDDEN,
                            "stacks are for the job's user on this machine\n");
    if (http_is_cross_site(&from))
        return respond_text(r, MHD_HTTP_FORBIDDEN,
                            "stacks are not for other sites' pages: open the job's own "
                            "page, or run muster stacks\n");
    const int rc = asks_now(r) ? status_stacks(r->http->status, http_on_answer, r) : 0;
    return when_answered(r, rc, "stacks cannot be read now\n");
}

/* ---- viewers: server-sent events ---- */

static void event_unref(struct event *e)
{
    if (!e || --e->refs > 0)
        return;
    buf_fini(&e->text);
    mem_free(e);
}

static ssize_t on_viewer_reads(void *cls, uint64_t pos, char *to, size_t most)
{
    struct request *r = cls;

    (void)pos;
    if (!r->event) {
        r->suspended = true;
        MHD_suspend_connection(r->mhd);
        return 0;
    }
    const struct span text = buf_span(&r->event->text);
    const size_t n = MIN_OF(most, text.n - r->sent);
    memcpy(to, text.p + r->sent, n);
    r->sent += n;
    if (r->sent == text.n) {
        event_unref(r->event);
        r->event = NULL;
    }
    return (ssize_t)n;
}

static struct event *event_new(const struct job_status *j, bool history)
{
    struct event *e = mem_calloc(1, sizeof *e);

    if (!e)
        return NULL;
    e->refs = 1;
    buf_init(&e->text, SIZE_MAX);
    put_str(&e->text, "data: ");
    job_status_json(&e->text, j, 0, history);
    put_str(&e->text, "\n\n");
    if (buf_error(&e->text) == 0)
        return e;
    event_unref(e);
    return NULL;
}

static void viewer_give(struct request *r, struct event *e)
{
    if (!e || r->event)
        return; /* It has not read the last one yet and will get a later one. */
    e->refs++;
    r->event = e;
    r->sent = 0;
    request_resume(r);
}

/* Sends news to all viewers; the history goes only to those that lack part of it. */
static void notify_all(void *ctx)
{
    struct status_http *h = ctx;
    struct event *whole = NULL, *part = NULL;
    struct job_status j;

    h->notifying = false;
    h->sent_ms = clock_mono_ms();
    if (!h->viewers || status_now(h->status, &j) != 0)
        return;
    const uint64_t newest = j.record ? j.record->last : 0;
    h->nodes = j.count;
    for (struct request *r = h->requests.first; r; r = r->next) {
        if (!r->viewer || r->event)
            continue;
        if (r->seen && newest == h->sent_entry) {
            part = part ? part : event_new(&j, false);
            viewer_give(r, part);
        } else {
            whole = whole ? whole : event_new(&j, true);
            viewer_give(r, whole);
            r->seen = whole != NULL;
        }
    }
    if (newest != h->sent_entry) /* A viewer that still reads older news misses it. */
        for (struct request *r = h->requests.first; r; r = r->next)
            if (r->viewer && whole && r->event != whole)
                r->seen = false;
    h->sent_entry = newest;
    event_unref(whole);
    event_unref(part);
    job_status_fini(&j);
    http_run(h);
}

static void notify_within(struct status_http *h, uint64_t in_ms);

static void on_news_timer(uv_timer_t *timer)
{
    struct status_http *h = timer->data;

    notify_within(h, MAX_OF(NEWS_MS, h->nodes * CACHE_MS));
    if (h->notifying)
        return;
    h->notifying = true;
    if (status_when_recent(h->status, notify_all, h) != 0)
        notify_all(h);
}

static void notify_within(struct status_http *h, uint64_t in_ms)
{
    if (h->viewers)
        (void)uv_timer_start(&h->news, on_news_timer, in_ms, 0);
    else
        (void)uv_timer_stop(&h->news);
}

static void http_on_change(void *ctx)
{
    struct status_http *h = ctx;
    const uint64_t now = clock_mono_ms();

    cache_drop(h);
    notify_within(h, h->sent_ms + NEWS_LEAST_MS > now ? h->sent_ms + NEWS_LEAST_MS - now
                                                      : 0);
}

static enum MHD_Result answer_viewer(struct request *r)
{
    struct status_http *h = r->http;
    struct MHD_Response *m;
    enum MHD_Result rc;

    if (h->viewers >= VIEWERS_MAX)
        return respond_text(r, MHD_HTTP_SERVICE_UNAVAILABLE,
                            "too many viewers watch this job already\n");
    m = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 32768, on_viewer_reads, r,
                                          NULL);
    if (!m)
        return MHD_NO;
    MHD_add_response_header(m, "Content-Type", "text/event-stream");
    MHD_add_response_header(m, "Cache-Control", "no-store");
    MHD_add_response_header(m, "X-Content-Type-Options", "nosniff");
    r->viewer = true;
    h->viewers++;
    notify_within(h, 0);
    rc = MHD_queue_response(r->mhd, MHD_HTTP_OK, m);
    MHD_destroy_response(m);
    return rc;
}

/* ---- requests ---- */

static bool may_see(struct request *r)
{
    const struct http_visit visit = {
        .same_user = r->connection && r->connection->same_user,
        .host = request_header(r, "Host"),
        .key = MHD_lookup_connection_value(r->mhd, MHD_GET_ARGUMENT_KIND, "key"),
        .bearer = request_header(r, "Authorization"),
    };

    return http_may_see(&visit, r->http->key);
}

static const struct route *find_route(const char *path)
{
    for (size_t i = 0; i < ARRAY_LEN(routes); i++)
        if (strcmp(routes[i].path, path) == 0)
            return &routes[i];
    return NULL;
}

static enum MHD_Result on_whole_request(struct request *r, const char *path)
{
    const struct route *route = find_route(path);

    if (!(route && route->open) && !may_see(r))
        return respond_text(r, MHD_HTTP_UNAUTHORIZED,
                            "This page is for the job's user on this machine, and for "
                            "anybody who has its key:\n`muster status --url` prints "
                            "the address with the key.\n");
    if (strcmp(path, "/events") == 0)
        return answer_viewer(r);
    if (strcmp(path, "/lines.json") == 0)
        return answer_lines(r);
    if (strcmp(path, "/stacks.json") == 0)
        return answer_stacks(r);
    if (!route)
        return respond_text(r, MHD_HTTP_NOT_FOUND, "there is no such page\n");
    if (route->recent && wait_for_recent(r))
        return MHD_YES;
    return http_answer(r, route);
}

static struct request *request_new(struct status_http *h, struct MHD_Connection *mhd)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct request *r = mem_calloc(1, sizeof *r);

    if (!r)
        return NULL;
    r->http = h;
    r->mhd = mhd;
    r->connection = info ? info->socket_context : NULL;
    if (r->connection)
        r->connection->busy = true;
    LIST_APPEND(&h->requests, r, prev, next);
    return r;
}

static enum MHD_Result http_on_request(void *cls, struct MHD_Connection *mhd,
                                       const char *url, const char *method,
                                       const char *version, const char *upload,
                                       size_t *upload_size, void **state)
{
    struct request *r = *state;

    (void)version;
    (void)upload;
    if (!r) { /* The headers are here; MHD calls again for the rest. */
        r = *state = request_new(cls, mhd);
        if (!r)
            return MHD_NO;
        if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
            return respond_text(r, MHD_HTTP_METHOD_NOT_ALLOWED,
                                "this page can only be read\n");
        return MHD_YES;
    }
    if (*upload_size) /* No request here has a body. */
        return MHD_NO;
    return on_whole_request(r, url);
}

static void on_completed(void *cls, struct MHD_Connection *mhd, void **state,
                         enum MHD_RequestTerminationCode how)
{
    struct status_http *h = cls;
    struct request *r = *state;

    (void)mhd;
    (void)how;
    if (!r)
        return;
    *state = NULL;
    status_forget(h->status, r);
    if (r->connection) {
        r->connection->busy = false;
        r->connection->since_ms = clock_mono_ms();
    }
    if (r->viewer)
        h->viewers--;
    event_unref(r->event);
    LIST_REMOVE(&h->requests, r, prev, next);
    r->suspended = false;
    r->gone = true;
    if (r->lines_asked)
        return;
    buf_fini(&r->lines);
    mem_free(r);
}

/* ---- connections ---- */

static void connection_open(struct status_http *h, struct MHD_Connection *mhd,
                            void **state)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct connection *c = mem_calloc(1, sizeof *c);
    uid_t uid;

    if (!c)
        return; /* It then counts as another user's, without a time limit of ours. */
    c->http = h;
    c->mhd = mhd;
    c->fd = info ? info->connect_fd : -1;
    c->since_ms = clock_mono_ms();
    c->same_user = peer_uid(c->fd, &uid) == PEER_HERE && uid == geteuid();
    LIST_APPEND(&h->connections, c, prev, next);
    *state = c;
}

static void connection_close(struct status_http *h, struct connection *c)
{
    LIST_REMOVE(&h->connections, c, prev, next);
    mem_free(c);
}

static void on_connection(void *cls, struct MHD_Connection *mhd, void **state,
                          enum MHD_ConnectionNotificationCode what)
{
    struct status_http *h = cls;

    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        connection_open(h, mhd, state);
        return;
    }
    h->again = true; /* A daemon that was full listens again only in its next run. */
    if (*state)
        connection_close(h, *state);
}

/* libmicrohttpd itself limits only silence, so a client that sends a byte now and then
 * could keep its connection for hours. */
static void end_slow_requests(struct status_http *h)
{
    const uint64_t now = clock_mono_ms();

    if (now - h->checked_ms < CHECK_MS)
        return;
    h->checked_ms = now;
    for (struct connection *c = h->connections.first; c; c = c->next)
        if (!c->busy && now - c->since_ms > REQUEST_MS)
            (void)shutdown(c->fd, SHUT_RDWR);
}

/* ---- the loop ---- */

static void http_on_timer(uv_timer_t *timer)
{
    http_run(timer->data);
}

/* May be called from within MHD's callbacks, through on_recent; the daemon then runs
 * once more afterwards. */
static void http_run(struct status_http *h)
{
    MHD_UNSIGNED_LONG_LONG ms = 0;
    uint64_t due = MONO_NEVER;

    if (h->running) {
        h->again = true;
        return;
    }
    h->running = true;
    /* The timer alone is not enough, as each byte that comes starts it again. */
    end_slow_requests(h);
    do {
        h->again = false;
        (void)MHD_run(h->daemon);
    } while (h->again);
    h->running = false;
    if (MHD_get_timeout(h->daemon, &ms) == MHD_YES)
        due = clock_mono_ms() + ms;
    if (h->connections.first)
        due = MIN_OF(due, clock_mono_ms() + CHECK_MS);
    clock_arm(&h->timer, http_on_timer, due);
}

static void http_on_readable(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    http_run(poll->data);
}

/* ---- open and close ---- */

static void on_mhd_log(void *cls, const char *fmt, va_list ap)
{
    /* Malformed requests of strangers are not worth a line in the job's log. */
    (void)cls;
    (void)fmt;
    (void)ap;
}

static struct MHD_Daemon *http_start_daemon(struct status_http *h)
{
    return MHD_start_daemon(
        MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL, NULL,
        http_on_request, h, MHD_OPTION_EXTERNAL_LOGGER, on_mhd_log, h,
        MHD_OPTION_LISTEN_SOCKET, h->fd, MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS_MAX,
        MHD_OPTION_CONNECTION_TIMEOUT, IDLE_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)MEMORY_MAX, MHD_OPTION_STRICT_FOR_CLIENT, 1,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, h, MHD_OPTION_NOTIFY_CONNECTION,
        on_connection, h, MHD_OPTION_END);
}

static int listen_at(struct status_http *h, const struct http_address *at,
                     struct muster_error *err)
{
    const struct listen_opts o = { .bind = at->host, .port = at->port, .fd = -1 };
    struct sockaddr_storage sa;
    socklen_t n = sizeof sa;
    int rc = listen_open(&o, &h->fd, err);

    if (rc != 0)
        return rc;
    (void)getsockname(h->fd, (struct sockaddr *)&sa, &n);
    const bool any = strcmp(at->host, "0.0.0.0") == 0 || strcmp(at->host, "::") == 0;
    char name[65] = "127.0.0.1";
    if (any)
        (void)gethostname(name, sizeof name - 1);
    else
        (void)snprintf(name, sizeof name, "%s", at->host);
    const bool v6 = strchr(name, ':') != NULL;
    const bool local = strcmp(name, "::1") == 0 || strncmp(name, "127.", 4) == 0;
    (void)snprintf(h->url, sizeof h->url, "http://%s%s%s:%u/%s%s", v6 ? "[" : "", name,
                   v6 ? "]" : "", (unsigned)address_port(&sa),
                   local || !*h->key ? "" : "?key=", local ? "" : h->key);
    return 0;
}

int status_http_open(uv_loop_t *loop, struct status *status,
                     const struct http_address *at, const char *key,
                     struct status_http **out, struct muster_error *err)
{
    int rc = mhd_dl_load(err);
    struct status_http *h = rc == 0 ? mem_calloc(1, sizeof *h) : NULL;
    const union MHD_DaemonInfo *info = NULL;

    if (!h)
        return rc ? rc : err_nomem(err);
    h->loop = loop;
    h->status = status;
    h->fd = -1;
    (void)snprintf(h->key, sizeof h->key, "%s", key);
    rc = listen_at(h, at, err);
    if (rc == 0) {
        h->daemon = http_start_daemon(h);
        info =
            h->daemon ? MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD) : NULL;
    }
    if (rc == 0 && (!info || uv_poll_init(loop, &h->poll, info->epoll_fd) < 0))
        rc = err_set(err, MUSTER_EIO, "libmicrohttpd cannot be started");
    if (rc != 0) {
        if (h->daemon)
            MHD_stop_daemon(h->daemon); /* closes the socket, too */
        else if (h->fd >= 0)
            (void)close(h->fd);
        mem_free(h);
        return rc;
    }
    (void)uv_timer_init(loop, &h->timer);
    (void)uv_timer_init(loop, &h->news);
    h->poll.data = h->timer.data = h->news.data = h;
    (void)uv_poll_start(&h->poll, UV_READABLE, http_on_readable);
    uv_unref((uv_handle_t *)&h->poll);
    uv_unref((uv_handle_t *)&h->timer);
    uv_unref((uv_handle_t *)&h->news);
    status_on_change(status, http_on_change, h);
    *out = h;
    return 0;
}

static void http_on_closed(void *ctx)
{
    struct status_http *h = ctx;

    mem_free(h);
}

static bool has_sent_all(const struct status_http *h)
{
    for (const struct request *r = h->requests.first; r; r = r->next)
        if (r->viewer && !r->suspended)
            return false;
    return true;
}

/* Sends what can be sent without waiting. A viewer whose connection is full misses the
 * rest. */
static void send_pending(struct status_http *h)
{
    for (int i = 0; i < LAST_TURNS && !has_sent_all(h); i++)
        http_run(h);
}

void status_http_close(struct status_http *h)
{
    if (!h)
        return;
    status_on_change(h->status, NULL, NULL);
    status_forget(h->status, h);
    /* Viewers should see how the job ended before the page goes away. They get the rest
     * of earlier news first. */
    send_pending(h);
    notify_all(h);
    send_pending(h);
    (void)uv_poll_stop(&h->poll);
    /* Callbacks during the shutdown must not run the daemon again. */
    h->running = true;
    for (struct request *r = h->requests.first; r; r = r->next)
        request_resume(r);
    MHD_stop_daemon(h->daemon);
    cache_drop(h);
    handle_set_begin(&h->closing, http_on_closed, h);
    handle_set_close(&h->closing, &h->poll);
    handle_set_close(&h->closing, &h->timer);
    handle_set_close(&h->closing, &h->news);
    handle_set_end(&h->closing);
}

const char *status_http_url(const struct status_http *h)
{
    return h->url;
}
