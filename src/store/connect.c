/* connect.c - see connect.h.
 *
 * A connector resolves, tries the addresses of a round, or pauses. One timer is armed
 * for whatever is due next: the deadline, the next address, the end of a pause, or the
 * end of a round that takes too long. */
#include "store/connect.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/rng.h"
#include "loop/clock.h"
#include "net/bind_address.h"
#include "net/port_holder.h"
#include "store/connect_int.h"
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#define STAGGER_MS         250   /* between two addresses of one round */
#define PATIENCE_MS        15000 /* for one round, before all addresses are tried again */
#define PAUSE_FIRST_MS     500
#define PAUSE_MOST_MS      2000 /* torch's grows to 60 s, which delays it by as much */
#define WRONG_SERVICE_MOST 3    /* rounds in which another service answered */
#define LOG_FIRST_MS       4000 /* of waiting, before the log says so */
#define LOG_AGAIN_MS       30000

struct connector {
    uv_loop_t *loop;
    uv_timer_t timer;
    char *host; /* owned */
    uint16_t port;
    uint64_t timeout_ms, deadline_ms;
    bool once;
    struct connect_opts opts; /* auth is a reference; host is NULL */
    const struct log *log;
    connect_cb cb; /* NULL once it has been called */
    void *ctx;
    struct rng rng;

    struct resolve *lookup; /* while resolving */
    struct sockaddr_storage addrs[RESOLVE_MAX];
    struct attempt *attempts[RESOLVE_MAX]; /* NULL: over */
    size_t count, next;                    /* addresses; the first not yet tried */
    uint64_t next_ms, patience_ms;         /* in a round; MONO_NEVER otherwise */
    uint64_t again_ms;                     /* in a pause; MONO_NEVER otherwise */
    double pause_ms;
    uint64_t start_ms, log_ms; /* when we began; when to log that we wait */
    int wrong_services;
    enum greeting greeting; /* of this round */

    struct muster_error last; /* why the last round failed */
    struct muster_error
        round; /* why this round fails, as far as known; code 0: not yet */
};

static void connect_start_round(struct connector *d);

static bool connect_racing(const struct connector *d)
{
    for (size_t i = 0; i < d->next; i++)
        if (d->attempts[i])
            return true;
    return false;
}

static void stop_attempts(struct connector *d)
{
    for (size_t i = 0; i < d->next; i++)
        if (d->attempts[i])
            attempt_stop(d->attempts[i]);
    memset(d->attempts, 0, sizeof d->attempts);
    d->count = d->next = 0;
    d->next_ms = d->patience_ms = MONO_NEVER;
}

static void connect_finish(struct connector *d, struct store_conn *conn,
                           const struct muster_error *err)
{
    const connect_cb cb = d->cb;

    stop_attempts(d);
    resolve_cancel(d->lookup);
    d->lookup = NULL;
    (void)uv_timer_stop(&d->timer);
    d->cb = NULL;
    cb(d->ctx, conn, err);
}

/* Which process is there instead of a store, if it is on this machine and we can see
 * it:
 * "; pid 712 (nc -l 29500, root) holds that port of this machine". */
static void put_holder(const struct connector *d, char *to, size_t size)
{
    const int code = d->last.code;
    char who[512];

    to[0] = '\0';
    if ((code == MUSTER_ENOTSTORE || code == MUSTER_EHANGUP ||
         code == MUSTER_ETIMEDOUT) &&
        d->addrs[0].ss_family != AF_UNSPEC &&
        address_on_this_machine((const struct sockaddr *)&d->addrs[0]) &&
        port_holder(d->port, who, sizeof who))
        (void)snprintf(to, size, "; %s holds that port of this machine", who);
}

static const char *failure_remedy(int code);

/* The message is torch's, so that a search for it finds something. */
static void connect_give_up(struct connector *d)
{
    struct muster_error err;
    char where[ENDPOINT_TEXT], holder[560];

    endpoint_text(d->host, d->port, where);
    put_holder(d, holder, sizeof holder);
    if (d->last.code == 0)
        (void)err_set(&d->last, MUSTER_ETIMEDOUT,
                      "the name %s has not been resolved yet", d->host);
    if (d->once || clock_mono_ms() < d->deadline_ms)
        (void)err_set(&err, d->last.code, "cannot connect to the store at %s", where);
    else
        (void)err_set(&err, d->last.code,
                      "The client socket has timed out after %" PRIu64
                      "ms while trying to connect to (%s, %u)",
                      d->timeout_ms, d->host, d->port);
    err_add(&err, ": %.700s%s; %s", d->last.text, holder, failure_remedy(d->last.code));
    connect_finish(d, NULL, &err);
}

static void note_failure(struct muster_error *so_far, int code, const char *why);

static void note_unfinished(struct connector *d)
{
    for (size_t i = 0; i < d->next; i++) {
        char why[200];

        if (!d->attempts[i])
            continue;
        attempt_status(d->attempts[i], why, sizeof why);
        note_failure(&d->round, MUSTER_ETIMEDOUT, why);
    }
}

/* Tells the user what we wait for: seldom in the usual log, each round with
 * LOGLEVEL=INFO. */
static void connect_log_waiting(struct connector *d, double pause, uint64_t now)
{
    log_line(d->log, LOG_INFO, AT_RENDEZVOUS,
             "the store at %s port %u was not reached, next attempt in %.1f s: %s",
             d->host, d->port, pause / 1000, d->last.text);
    if (now < d->log_ms)
        return;
    d->log_ms = now + LOG_AGAIN_MS;
    log_line(d->log, LOG_WARN, AT_RENDEZVOUS,
             "waiting for the store at %s port %u, %u s of %u: %s", d->host, d->port,
             (unsigned)((now - d->start_ms) / 1000), (unsigned)(d->timeout_ms / 1000),
             d->last.text);
}

static void connect_end_round(struct connector *d)
{
    const uint64_t now = clock_mono_ms();
    double pause;

    stop_attempts(d);
    d->last = d->round;
    d->round = (struct muster_error){ 0 };
    d->wrong_services = d->last.code == MUSTER_ENOTSTORE ? d->wrong_services + 1 : 0;
    /* A server that closes the connection on PING may be PyTorch 2.4 or older, or may
     * just be starting. */
    const bool first_hangup =
        d->last.code == MUSTER_EHANGUP && d->greeting == GREET_PING && !d->opts.auth;
    d->greeting = first_hangup ? GREET_NUM_KEYS : GREET_PING;
    if ((d->once && !first_hangup) || now >= d->deadline_ms ||
        d->last.code == MUSTER_ENOMEM || d->last.code == MUSTER_EACCES ||
        d->wrong_services >= WRONG_SERVICE_MOST) {
        connect_give_up(d);
        return;
    }
    pause = d->pause_ms * (0.5 + rng_unit(&d->rng));
    d->pause_ms = MIN_OF(d->pause_ms * 1.5, (double)PAUSE_MOST_MS);
    connect_log_waiting(d, pause, now);
    d->again_ms = first_hangup ? now : now + (uint64_t)pause;
}

static void connect_arm(struct connector *d);
static void connect_on_attempt(void *ctx, struct attempt *a, struct store_conn *conn,
                               int code, const char *why);

/* Starts attempts from the next address on, until one is under way. */
static void connect_try_next(struct connector *d)
{
    char why[200];
    int code;

    while (d->next < d->count) {
        struct attempt *a = attempt_start(
            d->loop, (const struct sockaddr *)&d->addrs[d->next], d->greeting, &d->opts,
            (uint32_t)getpid(), connect_on_attempt, d, &code, why, sizeof why);

        d->attempts[d->next++] = a;
        if (a) {
            d->next_ms = d->next < d->count ? clock_mono_ms() + STAGGER_MS : MONO_NEVER;
            return;
        }
        note_failure(&d->round, code, why);
    }
    d->next_ms = MONO_NEVER;
    if (!connect_racing(d))
        connect_end_round(d);
}

static void connect_on_attempt(void *ctx, struct attempt *a, struct store_conn *conn,
                               int code, const char *why)
{
    struct connector *d = ctx;

    for (size_t i = 0; i < d->next; i++)
        if (d->attempts[i] == a)
            d->attempts[i] = NULL;
    if (conn || code == 0) {
        connect_finish(d, conn, NULL);
        return;
    }
    note_failure(&d->round, code, why);
    connect_try_next(d);
    if (d->cb)
        connect_arm(d);
}

/* IPv6 and IPv4 take turns, each in the resolver's order, as in RFC 8305. */
static void connect_order(struct connector *d, const struct sockaddr_storage *addrs,
                          size_t count)
{
    size_t next[2] = { 0, 0 };
    const sa_family_t family[2] = { AF_INET6, AF_INET };

    d->count = 0;
    for (size_t turn = 0, missed = 0; missed < 2; turn = !turn) {
        size_t i = next[turn];

        while (i < count && addrs[i].ss_family != family[turn])
            i++;
        next[turn] = i + 1;
        if (i >= count) {
            missed++;
            continue;
        }
        missed = 0;
        d->addrs[d->count++] = addrs[i];
    }
}

static void connect_on_resolved(void *ctx, int status,
                                const struct sockaddr_storage *addrs, size_t count,
                                const struct muster_error *err)
{
    struct connector *d = ctx;

    d->lookup = NULL;
    if (status < 0) {
        note_failure(&d->round, status, err->text);
        connect_end_round(d);
    } else {
        connect_order(d, addrs, count);
        d->patience_ms = clock_mono_ms() + PATIENCE_MS;
        connect_try_next(d);
    }
    if (d->cb)
        connect_arm(d);
}

static void connect_start_round(struct connector *d)
{
    struct muster_error err;

    d->again_ms = MONO_NEVER;
    if (resolve_start(d->loop, d->host, d->port, connect_on_resolved, d, &d->lookup,
                      &err) < 0) {
        note_failure(&d->round, err.code, err.text);
        connect_end_round(d);
    }
}

static void connect_on_due(uv_timer_t *timer)
{
    struct connector *d = timer->data;
    const uint64_t now = clock_mono_ms();

    if (now >= d->deadline_ms) {
        note_unfinished(d);
        if (d->round.code)
            d->last = d->round;
        connect_give_up(d);
        return;
    }
    if (now >= d->patience_ms) {
        note_unfinished(d);
        connect_end_round(d);
    } else if (now >= d->again_ms) {
        connect_start_round(d);
    } else if (now >= d->next_ms) {
        connect_try_next(d);
    }
    if (d->cb)
        connect_arm(d);
}

/* The timer may come early; connect_on_due checks what is due. */
static void connect_arm(struct connector *d)
{
    const uint64_t now = clock_mono_ms();
    uint64_t due = MIN_OF(d->deadline_ms, d->again_ms);

    due = MIN_OF(due, d->next_ms);
    due = MIN_OF(due, d->patience_ms);
    uv_update_time(d->loop);
    (void)uv_timer_start(&d->timer, connect_on_due, ms_left(due, now), 0);
}

static uint64_t connect_seed(void)
{
    uint64_t s = uv_hrtime();

    (void)uv_random(NULL, NULL, &s, sizeof s, 0, NULL);
    return s;
}

int connect_start(uv_loop_t *loop, const struct connect_opts *opts, connect_cb cb,
                  void *ctx, struct connector **out, struct muster_error *err)
{
    struct connector *d = mem_calloc(1, sizeof *d);
    char *host = mem_strdup(opts->host);
    const uint64_t now = clock_mono_ms();

    if (!d || !host) {
        mem_free(d);
        mem_free(host);
        return err_nomem(err);
    }
    d->loop = loop;
    d->host = host;
    d->port = opts->port;
    d->timeout_ms = opts->timeout_ms;
    d->deadline_ms =
        opts->timeout_ms < MONO_NEVER - now ? now + opts->timeout_ms : MONO_NEVER - 1;
    d->once = opts->once;
    d->opts = *opts;
    d->opts.host = NULL;
    d->opts.auth = auth_ref(opts->auth);
    d->log = opts->log;
    d->cb = cb;
    d->ctx = ctx;
    d->pause_ms = PAUSE_FIRST_MS;
    d->next_ms = d->patience_ms = MONO_NEVER;
    d->again_ms = now; /* The first round starts from the loop. */
    d->start_ms = now;
    d->log_ms = now + LOG_FIRST_MS;
    rng_init(&d->rng, connect_seed());
    (void)uv_timer_init(loop, &d->timer);
    d->timer.data = d;
    connect_arm(d);
    *out = d;
    return 0;
}

const char *connect_last_failure(const struct connector *d)
{
    return d->last.text;
}

static void connect_on_closed(uv_handle_t *handle)
{
    struct connector *d = handle->data;

    auth_unref(d->opts.auth);
    mem_free(d->host);
    mem_free(d);
}

void connect_free(struct connector *d)
{
    if (!d)
        return;
    d->cb = NULL;
    stop_attempts(d);
    resolve_cancel(d->lookup);
    d->lookup = NULL;
    uv_close((uv_handle_t *)&d->timer, connect_on_closed);
}

/* ---- what to say when no store was reached ---- */

static const char *failure_remedy(int code)
{
    switch (code) {
    case MUSTER_EREFUSED:
        return "nothing listens there: is the store running, and is the port right?";
    case MUSTER_EUNREACH:
        return "check the address, the routes and the network of both hosts";
    case MUSTER_ERESOLVE:
        return "check the spelling and the name service, or give a numeric address";
    case MUSTER_ENOTSTORE:
        return "another service has that port: check host and port";
    case MUSTER_EHANGUP:
        return "the store may be PyTorch 2.4 or older, or a proxy without a store "
               "behind it";
    case MUSTER_EACCES:
        return "all nodes of a job need the same --token-file (or MUSTER_TOKEN)";
    case MUSTER_ETIMEDOUT:
        return "a firewall may drop packets, or the store's process may be stopped";
    default:
        return "see the reason above";
    }
}

/* The code that says most about the peer wins: that another service answered outweighs
 * that a second address refused. */
static int failure_weight(int code)
{
    switch (code) {
    case MUSTER_ENOMEM:
        return 8;
    case MUSTER_EACCES:
        return 7;
    case MUSTER_ENOTSTORE:
        return 6;
    case MUSTER_EHANGUP:
        return 5;
    case MUSTER_ETIMEDOUT:
        return 4;
    case MUSTER_EREFUSED:
        return 3;
    case MUSTER_ERESOLVE:
        return 2;
    case MUSTER_EUNREACH:
        return 1;
    default:
        return 0;
    }
}

/* Adds why one attempt failed to the reason why the whole round fails. */
static void note_failure(struct muster_error *so_far, int code, const char *why)
{
    if (so_far->code == 0) {
        (void)err_set(so_far, code, "%s", why);
        return;
    }
    if (failure_weight(code) > failure_weight(so_far->code))
        so_far->code = code;
    if (strlen(so_far->text) < 500)
        err_add(so_far, "; %s", why);
}
