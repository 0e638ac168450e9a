/* server_auth.c - which connection may ask a store for what, if its job has a secret.
 *
 * A node of ours proves on each connection that it holds the secret
 * (auth/core/handshake.h), and names its machine's addresses. Torch's workers cannot
 * prove anything: a plain connection is served as a worker's if it comes from this
 * machine and belongs to the job's own user, or if it comes from an address of a node
 * that is connected and has proven itself. Until it is admitted, a connection learns
 * nothing of the store, and its time, its memory and its number are limited. */
#include <stdarg.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "auth/munge_dl.h"
#include "auth/secret.h"
#include "auth/tls.h"
#include "base/base64.h"
#include "base/err.h"
#include "base/list.h"
#include "base/map.h"
#include "base/mem.h"
#include "loop/blocking_call.h"
#include "net/peer_uid.h"
#include "store/core/quote.h"
#include "store/core/reserved.h"
#include "store/server_int.h"

#define UNPROVEN_EACH 16384u      /* connections of one address that are not admitted */
#define UNPROVEN_ASKS 64u         /* requests of such a connection */
#define UNPROVEN_HELD (64u << 20) /* bytes of unfinished requests of all of them */
#define MUNGE_MS      5000u       /* for its daemon to answer */
#define MUNGES        32u         /* calls of munge at once, each on a thread */
#define ELASTIC_KEY   "/torchelastic/"

/* An address that connections come from, or that a proven node has named. */
struct address {
    struct map_link link;
    uint8_t ip[16];
    unsigned unproven;               /* connections without a proof */
    struct conn_proof *first, *last; /* these connections, the oldest first */
    unsigned members;                /* proven nodes that have this address */
    struct {
        struct opening *first, *last;
    } line;                      /* borrowed; its openings that wait for munge */
    struct address *prev, *next; /* other addresses with such openings */
};

struct server_auth {
    struct auth *auth; /* a reference */
    struct map addresses;
    size_t admitted;              /* connections, open now */
    size_t unproven;              /* connections without a proof, open now */
    struct address *most;         /* borrowed; has most of them, or did so lately */
    size_t unproven_most;         /* at most, to leave descriptors for members */
    size_t unproven_held;         /* bytes that these connections hold */
    struct address *first, *last; /* borrowed; they take turns with munge */
    unsigned munging;             /* openings for which munge is being asked */
};

/* What a connection has shown so far. */
struct conn_proof {
    struct conn *conn;              /* the connection that it belongs to */
    struct conn_proof *prev, *next; /* unproven ones of the same address */
    struct auth_side *side;         /* owned; until it is admitted */
    struct opening *opening;        /* owned; while munge is asked for a credential */
    uint8_t from[16];
    bool counted;          /* as unproven, at `from` */
    bool ours;             /* it asks like a node of ours, so it will prove itself */
    bool only_reads;       /* names no run: not a node, but a client that reads */
    bool asked_kernel;     /* the kernel was asked which user it belongs to ... */
    enum peer_place place; /* ... and said this */
    uid_t uid;
    unsigned asks; /* its requests so far */
    char name[64];
    size_t count;             /* of addresses that it has named and we count */
    uint8_t (*addresses)[16]; /* owned */
};

int server_auth_open(struct store_server *s, struct muster_error *err)
{
    struct rlimit files;

    if (!s->opts.auth)
        return 0;
    s->auth = mem_calloc(1, sizeof *s->auth);
    if (!s->auth)
        return err_nomem(err);
    s->auth->auth = auth_ref(s->opts.auth);
    s->auth->unproven_most = SIZE_MAX;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY)
        s->auth->unproven_most = (size_t)files.rlim_cur / 4 * 3;
    map_init(&s->auth->addresses, s->opts.seed);
    return 0;
}

void server_auth_free(struct store_server *s)
{
    struct map_link *l;

    if (!s->auth)
        return;
    for (size_t i = 0; (l = map_next(&s->auth->addresses, &i));)
        mem_free(CONTAINER_OF(l, struct address, link));
    map_fini(&s->auth->addresses);
    auth_unref(s->auth->auth);
    mem_free(s->auth);
    s->auth = NULL;
}

/* ---- Addresses ---- */

static struct address *find_address(struct server_auth *a, const uint8_t ip[16])
{
    struct map_link *l = map_get(&a->addresses, span_of(ip, 16));

    return l ? CONTAINER_OF(l, struct address, link) : NULL;
}

static struct address *get_address(struct server_auth *a, const uint8_t ip[16])
{
    struct address *e = find_address(a, ip);

    if (e)
        return e;
    e = map_reserve(&a->addresses, 1) == 0 ? mem_calloc(1, sizeof *e) : NULL;
    if (!e)
        return NULL;
    memcpy(e->ip, ip, 16);
    e->link.key = span_of(e->ip, 16);
    map_add(&a->addresses, &e->link);
    return e;
}

static void release_address(struct server_auth *a, struct address *e)
{
    if (e->unproven || e->members)
        return;
    if (a->most == e)
        a->most = NULL;
    map_remove(&a->addresses, &e->link);
    mem_free(e);
}

static void count_unproven(struct address *e, struct conn_proof *p)
{
    p->counted = true;
    LIST_APPEND(e, p, prev, next);
    e->unproven++;
}

static void uncount_unproven(struct address *e, struct conn_proof *p)
{
    p->counted = false;
    LIST_REMOVE(e, p, prev, next);
    e->unproven--;
}

size_t server_auth_admitted(const struct store_server *s)
{
    return s->auth->admitted;
}

__attribute__((format(printf, 3, 4))) static void
auth_turn_away(struct store_server *s, struct conn *c, const char *fmt, ...)
{
    char why[700], who[ADDRESS_TEXT];
    va_list ap;

    if (c->dead)
        return;
    if (server_may_log(s)) {
        va_start(ap, fmt);
        (void)vsnprintf(why, sizeof why, fmt, ap);
        va_end(ap);
        address_of_peer(conn_socket(c), who);
        log_line(s->opts.log, LOG_WARN, AT_RENDEZVOUS, "store %s: refused %s: %s",
                 s->address, who, why);
    }
    if (c == s->serving) { /* The reason may be among its answers: send them first. */
        conn_send(s, c, buf_span(&s->out));
        buf_clear(&s->out);
    }
    conn_close(s, c);
}

struct opening;
static void opening_free(struct opening *o);

/* ---- Coming and going ---- */

/* Of the address that has most connections without a proof, closes the one that has
 * waited longest. A member may be far away and take a while, but it has few of them, so
 * it gets in however many others open. `came` has just got one more: an address that
 * grows takes the lead as soon as it has it. */
static void auth_make_room(struct store_server *s, struct address *came)
{
    struct address *most = s->auth->most;

    if (!most || came->unproven >= most->unproven)
        most = s->auth->most = came;
    auth_turn_away(
        s, most->first->conn,
        "%zu connections have not proven themselves, most of them (%u) come from "
        "its address, and it is the oldest of them",
        s->auth->unproven, most->unproven);
}

bool server_auth_came(struct store_server *s, struct conn *c)
{
    struct address *e;

    c->proof = mem_calloc(1, sizeof *c->proof);
    if (!c->proof)
        return false;
    conn_address(c, c->proof->from);
    e = get_address(s->auth, c->proof->from);
    if (!e)
        return false;
    c->proof->conn = c;
    count_unproven(e, c->proof);
    s->auth->unproven++;
    if (e->unproven > UNPROVEN_EACH)
        auth_turn_away(
            s, e->first->conn,
            "its address has %u connections that have not proven themselves, and "
            "it is the oldest of them",
            UNPROVEN_EACH);
    else if (s->auth->unproven > s->auth->unproven_most)
        auth_make_room(s, e);
    else if (!s->auth->most || e->unproven > s->auth->most->unproven)
        s->auth->most = e;
    return true;
}

static void auth_uncount(struct store_server *s, struct conn *c)
{
    struct address *e;

    if (!c->proof->counted)
        return;
    s->auth->unproven--;
    e = find_address(s->auth, c->proof->from);
    uncount_unproven(e, c->proof);
    release_address(s->auth, e);
}

void server_auth_left(struct store_server *s, struct conn *c)
{
    tls_end(c->tls);
    c->tls = NULL;
    if (c->admitted)
        s->auth->admitted--;
    else
        s->auth->unproven_held -= c->held;
    if (!c->proof)
        return;
    opening_free(c->proof->opening);
    auth_uncount(s, c);
    for (size_t i = 0; i < c->proof->count; i++) {
        struct address *e = find_address(s->auth, c->proof->addresses[i]);

        e->members--;
        release_address(s->auth, e);
    }
    mem_free(c->proof->side);
    mem_free(c->proof->addresses);
    mem_free(c->proof);
    c->proof = NULL;
}

static void auth_admit(struct store_server *s, struct conn *c)
{
    c->admitted = true;
    s->auth->admitted++;
    s->auth->unproven_held -= c->held;
    auth_uncount(s, c);
    server_untime(s, c);
}

void server_auth_carried(struct store_server *s, struct conn *c)
{
    c->admitted = c->worker_only = true;
    s->auth->admitted++;
}

bool server_auth_held(struct store_server *s, struct conn *c, size_t before)
{
    if (c->admitted)
        return true;
    s->auth->unproven_held = s->auth->unproven_held - before + c->held;
    return s->auth->unproven_held <= UNPROVEN_HELD;
}

/* ---- The handshake ---- */

bool server_auth_is_message(const struct c10d_request *req)
{
    return req->op == C10D_QUEUE_PUSH && reserved_is_question(req->name) &&
           span_eq(req->key, span_str(AUTH_KEY));
}

static void auth_send_message(struct store_server *s, struct conn *c,
                              const uint8_t *bytes, size_t n)
{
    uint8_t out[8 + AUTH_MESSAGE];

    put_u64(out, n);
    memcpy(out + 8, bytes, n);
    server_send(s, c, span_of(out, 8 + n));
}

void server_auth_refuse(struct store_server *s, struct conn *c)
{
    static const char why[] =
        "this store's job has no secret: give all nodes the same --token-file (or "
        "MUSTER_TOKEN), or none of them";
    uint8_t out[AUTH_MESSAGE];
    const size_t n = auth_encode(
        &(struct auth_message){ .kind = AUTH_REFUSED, .text = span_str(why) }, out);

    auth_send_message(s, c, out, n);
    conn_refuse(s, c, "it has a secret, and this store's job has none");
}

/* Its machine's addresses are a member's from now on. The address that it comes from is
 * always among them. */
static int hold_addresses(struct store_server *s, struct conn *c,
                          const struct auth_message *m)
{
    struct conn_proof *p = c->proof;

    p->addresses = mem_alloc((m->address_count + 1) * sizeof *p->addresses);
    if (!p->addresses)
        return MUSTER_ENOMEM;
    for (size_t i = 0; i <= m->address_count; i++) {
        const uint8_t *ip = i < m->address_count ? m->addresses + 16 * i : p->from;
        struct address *e = get_address(s->auth, ip);

        if (!e)
            return MUSTER_ENOMEM;
        e->members++;
        memcpy(p->addresses[p->count++], ip, 16);
    }
    return 0;
}

/* An OPEN that waits for its credential, which a daemon makes. */
struct opening {
    struct store_server *server;
    struct conn *conn;
    struct blocking_call *call;  /* owned; NULL while it waits for its turn */
    bool waits;                  /* for its turn, in the line of its address */
    struct opening *prev, *next; /* in that line */
    uint8_t bytes[AUTH_OPEN_MOST];
    size_t size;
    uint8_t nonce[AUTH_NONCE]; /* ours */
};

static void munge_next(struct store_server *s);

static void line_up(struct server_auth *a, struct opening *o)
{
    struct address *e = find_address(a, o->conn->proof->from);

    if (!e->line.first)
        LIST_APPEND(a, e, prev, next);
    LIST_APPEND(&e->line, o, prev, next);
    o->waits = true;
}

/* Its address goes to the end, so that each other address has a turn before it. */
static void leave_line(struct server_auth *a, struct opening *o)
{
    struct address *e = find_address(a, o->conn->proof->from);

    LIST_REMOVE(&e->line, o, prev, next);
    LIST_REMOVE(a, e, prev, next);
    if (e->line.first)
        LIST_APPEND(a, e, prev, next);
    o->waits = false;
}

static void opening_free(struct opening *o)
{
    struct store_server *s;

    if (!o)
        return;
    s = o->server;
    if (o->waits) {
        leave_line(s->auth, o);
    } else {
        blocking_call_cancel(o->call);
        s->auth->munging--;
    }
    mem_free(o);
    if (!s->closing)
        munge_next(s);
}

/* Continues with the credential, or with the error that says why there is none. */
static void auth_go_on(struct store_server *s, struct conn *c, struct opening *o,
                       const char *credential, struct muster_error *err)
{
    const struct auth *a = s->auth->auth;
    uint8_t out[AUTH_MESSAGE];
    struct auth_message m;
    size_t n = 0;
    int rc = err->code;

    c->proof->opening = NULL;
    if (rc == 0)
        rc = auth_decode(span_of(o->bytes, o->size), &m, err);
    if (rc == 0)
        rc = auth_server_open(c->proof->side, &a->settings, &m,
                              span_of(o->bytes, o->size), o->nonce,
                              span_str(credential), out, &n, err);
    else
        n = auth_encode(
            &(struct auth_message){ .kind = AUTH_REFUSED, .text = span_str(err->text) },
            out);
    mem_free(o);
    auth_send_message(s, c, out, n);
    if (rc < 0)
        auth_turn_away(s, c, "%s", err->text);
}

static void auth_on_credential(void *ctx, void *data)
{
    struct opening *o = ctx;
    struct munge_job *job = data;
    struct store_server *s = o->server;
    struct muster_error err = { 0 };

    o->call = NULL;
    s->auth->munging--;
    if (!job)
        (void)err_set(&err, MUSTER_EACCES, "munge: no answer within 5 s");
    else if (job->err.code)
        (void)err_set(&err, job->err.code, "%s", job->err.text);
    auth_go_on(s, o->conn, o, job ? job->credential : "", &err);
    if (job)
        explicit_bzero(job->payload, sizeof job->payload);
    munge_next(s);
    server_end_turn(s);
}

/* Prepares the secret and both nonces for the daemon; NULL without memory. */
static struct munge_job *munge_job_new(const struct server_auth *a,
                                       const struct opening *o)
{
    struct munge_job *job = mem_calloc(1, sizeof *job);
    struct auth_message m;

    if (!job || auth_decode(span_of(o->bytes, o->size), &m, NULL) < 0) {
        mem_free(job);
        return NULL;
    }
    memcpy(job->payload, a->auth->key, AUTH_SECRET);
    memcpy(job->payload + AUTH_SECRET, m.nonce, AUTH_NONCE);
    memcpy(job->payload + AUTH_SECRET + AUTH_NONCE, o->nonce, AUTH_NONCE);
    return job;
}

/* Anybody may ask for credentials, so the number of threads is limited, and the rest
 * waits. Addresses take turns, so that many requests from one address do not keep the
 * nodes waiting. */
static void munge_next(struct store_server *s)
{
    struct server_auth *a = s->auth;
    struct muster_error err;

    while (a->munging < MUNGES && a->first) {
        struct opening *o = a->first->line.first;
        struct munge_job *job = munge_job_new(a, o);

        leave_line(a, o);
        if (!job)
            (void)err_nomem(&err);
        else if (blocking_call_run(s->loop, munge_make, job, MUNGE_MS,
                                   auth_on_credential, o, &o->call, &err) == 0) {
            a->munging++;
            continue;
        }
        if (job)
            explicit_bzero(job->payload, sizeof job->payload);
        mem_free(job);
        auth_go_on(s, o->conn, o, "", &err);
    }
}

static int auth_ask_munge(struct store_server *s, struct conn *c, struct span bytes,
                          const uint8_t nonce[AUTH_NONCE], struct muster_error *err)
{
    struct opening *o = mem_calloc(1, sizeof *o);

    if (!o)
        return err_nomem(err);
    o->server = s;
    o->conn = c;
    memcpy(o->bytes, bytes.p, bytes.n);
    o->size = bytes.n;
    memcpy(o->nonce, nonce, AUTH_NONCE);
    c->proof->opening = o;
    line_up(s->auth, o);
    munge_next(s);
    return 0;
}

static int auth_on_open(struct store_server *s, struct conn *c,
                        const struct auth_message *m, struct span bytes, uint8_t *out,
                        size_t *n, struct muster_error *err)
{
    struct auth *a = s->auth->auth;
    uint8_t nonce[AUTH_NONCE];

    c->proof->side = mem_alloc(sizeof *c->proof->side);
    if (!c->proof->side)
        return err_nomem(err);
    secret_random(nonce, sizeof nonce);
    c->proof->only_reads = m->kind == AUTH_OPEN && !auth_names_run(m);
    (void)snprintf(c->proof->name, sizeof c->proof->name, "%.*s",
                   (int)MIN_OF(m->name.n, 63), (const char *)m->name.p);
    if (a->settings.flags & AUTH_MUNGE) {
        const int rc = auth_server_check(&a->settings, m, out, n, err);
        uint8_t key[AUTH_SECRET];

        if (rc < 0)
            return rc;

        if (!a->settings.key) { /* The first OPEN: make the job's secret. */
            secret_random(key, sizeof key);
            auth_set_key(a, key);
        }
        *n = 0;
        return auth_ask_munge(s, c, bytes, nonce, err);
    }
    return auth_server_open(c->proof->side, &a->settings, m, bytes, nonce,
                            span_of(NULL, 0), out, n, err);
}

static void auth_on_message(struct store_server *s, struct conn *c, struct span bytes)
{
    struct conn_proof *p = c->proof;
    const struct auth *a = s->auth->auth;
    uint8_t out[AUTH_MESSAGE];
    struct auth_message m;
    struct muster_error err;
    char name[QUOTE_MAX];
    size_t n = 0;
    int rc = auth_decode(bytes, &m, &err);

    if (rc == 0 && p->opening)
        rc = err_set(&err, MUSTER_EPROTO, "it sent a handshake message out of turn");
    else if (rc == 0 && !p->side)
        rc = auth_on_open(s, c, &m, bytes, out, &n, &err);
    else if (rc == 0)
        rc = auth_server_finish(p->side, &a->settings, &m, out, &n, &err);
    /* A client that only reads may run on a machine that other users share, and has no
     * workers there: do not admit others from its addresses. */
    if (rc == 0 && m.kind == AUTH_ANSWER && !p->only_reads &&
        hold_addresses(s, c, &m) < 0)
        rc = err_set(&err, MUSTER_ENOMEM, "out of memory");
    if (n)
        auth_send_message(s, c, out, n);
    if (rc < 0) {
        auth_turn_away(s, c, "node %s: %s", quote(span_str(p->name), name), err.text);
        return;
    }
    if (m.kind != AUTH_ANSWER)
        return;
    auth_admit(s, c);
    c->encrypts = a->settings.flags & AUTH_ENCRYPT;
    if (!c->encrypts) {
        mem_free(p->side);
        p->side = NULL;
    }
}

void server_auth_encrypt(struct store_server *s, struct conn *c, struct span rest)
{
    struct conn_proof *p = c->proof;
    uint8_t key[AUTH_SECRET];
    struct muster_error err;

    c->encrypts = false;
    if (c->out) {
        auth_turn_away(s, c, "it does not take its answers");
        return;
    }
    auth_session_key(p->side, &s->auth->auth->settings, key);
    mem_free(p->side);
    p->side = NULL;
    if (tls_new(true, c->fd, key, &c->tls, &err) < 0 ||
        tls_feed(c->tls, rest.p, rest.n) < 0) {
        auth_turn_away(s, c, "%s", c->tls ? "out of memory" : err.text);
        return;
    }
    explicit_bzero(key, sizeof key);
    /* The protocol starts again inside the encryption. */
    c10d_decoder_init(&c->decoder);
    c->known = false;
    server_time(s, c);
}

/* ---- Connections that do not prove anything ---- */

/* Whether the address may be one of this machine's. For others the kernel need not be
 * asked, so that connections from elsewhere cost less. */
static bool may_be_here(struct auth *a, const uint8_t ip[16])
{
    static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };
    static const uint8_t zeros[15];

    secret_addresses(a);
    if (memcmp(ip, zeros, 15) == 0 || (memcmp(ip, mapped, 12) == 0 && ip[12] == 127) ||
        a->address_count == 0 || a->address_count >= AUTH_ADDRESSES)
        return true; /* It is loopback or unknown, or our list may be incomplete. */
    for (size_t i = 0; i < a->address_count; i++)
        if (memcmp(a->addresses[i], ip, 16) == 0)
            return true;
    return false;
}

/* Asks the kernel once and early, because a worker may close its end soon. */
static void auth_find_user(struct store_server *s, struct conn *c)
{
    struct conn_proof *p = c->proof;

    if (p->asked_kernel)
        return;
    p->asked_kernel = true;
    p->place =
        may_be_here(s->auth->auth, p->from) ? peer_uid(c->fd, &p->uid) : PEER_ELSEWHERE;
}

void server_auth_find_user(struct store_server *s, struct conn *c)
{
    if (s->auth && !c->dead && !c->admitted && !c->proof->ours && !c->proof->side)
        auth_find_user(s, c);
}

/* Whether c may be served as a worker without a proof; else *why is set. */
static bool may_be_plain(struct store_server *s, struct conn *c, const char **why)
{
    const struct auth *a = s->auth->auth;
    struct address *e;

    if (a->optional)
        return true;
    auth_find_user(s, c);
    switch (c->proof->place) {
    case PEER_HERE:
        *why = "it belongs to another user of this machine";
        return c->proof->uid == geteuid();
    case PEER_UNKNOWN: /* It may be on this machine, whatever its address is. */
        *why = "it was gone before the kernel could tell which user it belongs to";
        return false;
    case PEER_ELSEWHERE:
        break;
    }
    *why = "it has not proven itself, and no member of the job has its address";
    /* With encryption, workers of other nodes come through their agents. */
    if (a->settings.flags & AUTH_ENCRYPT)
        return false;
    e = find_address(s->auth, c->proof->from);
    return e && e->members;
}

bool server_auth_admits_plain(struct store_server *s, struct conn *c)
{
    const char *why;

    if (!may_be_plain(s, c, &why))
        return false;
    c->worker_only = !s->auth->auth->optional;
    auth_admit(s, c);
    return true;
}

static void auth_send_secret(struct store_server *s, struct conn *c)
{
    const char *words = s->auth->auth->settings.flags & AUTH_ENCRYPT
                            ? RESERVED_CAPS_SECRET " " RESERVED_CAPS_ENCRYPT
                            : RESERVED_CAPS_SECRET;

    server_reply(s, c,
                 &(struct c10d_reply){ .op = C10D_GET, .value = span_str(words) });
}

static bool is_for_run(const struct c10d_request *req)
{
    struct c10d_list list = req->list;
    struct span key;

    return req->op == C10D_CHECK && list.count == 1 && c10d_list_next(&list, &key) &&
           span_eq(key, span_str(RESERVED_RUN));
}

/* To whoever has proven nothing, the store hosts no runs. */
static bool auth_hides_run(struct store_server *s, struct conn *c,
                           const struct c10d_request *req)
{
    if (!is_for_run(req))
        return false;
    server_reply(s, c, &(struct c10d_reply){ .op = C10D_CHECK, .number = 1 });
    return true;
}

/* A torchrun that tries to join sees this at the end of its traceback. The state that
 * it reads is a pickle, and ours names a module that does not exist: the import fails,
 * and Python prints the module's name. */
#define REFUSAL                                                                        \
    "this job has a secret, which torchrun cannot prove: start this node with muster " \
    "and the job's --token-file, or all nodes with --token-optional"

static bool refused_torch(struct store_server *s, struct conn *c,
                          const struct c10d_request *req)
{
    static const char pickle[] = "c" REFUSAL "\nx\n.";
    struct c10d_list list = req->list;
    struct span key = req->key;
    struct buf text;

    if (req->op == C10D_WAIT && !c10d_list_next(&list, &key))
        return false;
    if ((req->op != C10D_COMPARE_SET && req->op != C10D_GET && req->op != C10D_WAIT) ||
        reserved_parse(key).kind != RESERVED_IS_STATE)
        return false;
    buf_init(&text, SIZE_MAX);
    if (base64_encode(&text, span_of(pickle, sizeof pickle - 1)) == 0)
        server_reply(s, c,
                     &(struct c10d_reply){ .op = req->op, .value = buf_span(&text) });
    buf_fini(&text);
    if (!c->notified && req->op == C10D_GET && server_may_log(s)) {
        char who[ADDRESS_TEXT];

        address_of_peer(conn_socket(c), who);
        log_line(
            s->opts.log, LOG_WARN, AT_RENDEZVOUS,
            "store %s: refused %s: it is a torchrun, which cannot prove itself; it was "
            "told so (--token-optional admits it)",
            s->address, who);
        c->notified = true;
    }
    return true;
}

/* Whether a key is for agents only. Agents of a static job exchange their ranks under
 * keys that have ELASTIC_KEY behind the run id. */
static bool is_agents_key(struct reserved name, struct span key)
{
    return name.kind != RESERVED_NONE ||
           (key.n && memmem(key.p, key.n, ELASTIC_KEY, sizeof ELASTIC_KEY - 1));
}

/* Anybody on a machine of the job may pass for a worker, but not for an agent, which
 * could take a seat. This holds for the job's own user, too, who may have other jobs
 * whose nodes have other tokens or none. */
bool server_auth_worker_gate(struct store_server *s, struct conn *c,
                             const struct c10d_request *req)
{
    struct c10d_list list = req->list;
    bool agents = is_agents_key(req->name, req->key);
    struct span key, value;

    while (!agents && list.count && c10d_list_next(&list, &key)) {
        agents = is_agents_key(reserved_parse(key), key);
        if (req->op == C10D_MULTI_SET) /* Its list alternates keys and values. */
            (void)c10d_list_next(&list, &value);
    }
    if (!agents)
        return false;
    if (req->op == C10D_GET && req->name.kind == RESERVED_IS_CAPS)
        auth_send_secret(s, c);
    else if (!auth_hides_run(s, c, req) && req->op != C10D_CHECK &&
             !refused_torch(s, c, req))
        auth_turn_away(
            s, c,
            "its %s was for a key of the agents: it comes from a machine of the "
            "job, but has not proven that it is one of the job's nodes",
            c10d_op_name(req->op));
    return req->op != C10D_CHECK || is_for_run(req);
}

bool server_auth_gate(struct store_server *s, struct conn *c,
                      const struct c10d_request *req)
{
    const char *why;
    struct c10d_list list = req->list;
    struct span key;

    if (++c->proof->asks > UNPROVEN_ASKS) {
        auth_turn_away(s, c, "it sent more than %u requests without a proof",
                       UNPROVEN_ASKS);
        return true;
    }
    if (req->op == C10D_VALIDATE || req->op == C10D_PING)
        return false;
    /* Anybody may ask whether the store is ours. */
    if (req->op == C10D_CHECK && list.count == 1 && c10d_list_next(&list, &key) &&
        span_eq(key, span_str(RESERVED_CAPS))) {
        c->proof->ours = true;
        return false;
    }
    if (auth_hides_run(s, c, req))
        return true;
    if (server_auth_is_message(req)) {
        auth_on_message(s, c, req->value);
        return true;
    }
    if (req->op == C10D_GET && req->name.kind == RESERVED_IS_CAPS &&
        !s->auth->auth->optional) {
        auth_send_secret(s, c);
        return true;
    }
    if (server_auth_admits_plain(s, c))
        return c->worker_only && server_auth_worker_gate(s, c, req);
    (void)may_be_plain(s, c, &why);
    if (!refused_torch(s, c, req))
        auth_turn_away(s, c, "it sent %s: %s", c10d_op_name(req->op), why);
    return true;
}
