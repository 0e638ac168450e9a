/* connect.c - from a host name to a greeted connection; see connect.h.
 *
 * A dialer resolves, races, or pauses. One timer is armed for whatever is due next: the
 * deadline, the next address of the race, the end of a pause, the end of patience. */
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

#define STAGGER_MS         250   /* between two addresses of one race */
#define PATIENCE_MS        15000 /* for one race, before all is tried anew */
#define PAUSE_FIRST_MS     500
#define PAUSE_MOST_MS      2000 /* torch goes up to 60 s, and comes late by as much */
#define WRONG_SERVICE_MOST 3    /* rounds in which another service answered */
#define LOG_FIRST_MS       4000 /* of waiting, before a person should hear of it */
#define LOG_AGAIN_MS       30000

struct dialer {
    uv_loop_t *loop;
    uv_timer_t timer;
    char *host; /* owned */
    uint16_t port;
    uint64_t timeout_ms, deadline_ms;
    bool once;
    struct dial_opts opts; /* auth is a reference; host is not to be used */
    const struct trace *trace;
    dial_cb cb; /* NULL once it has been called */
    void *ctx;
    struct rng rng;

    struct resolve *lookup; /* while resolving */
    struct sockaddr_storage addrs[RESOLVE_MAX];
    struct attempt *attempts[RESOLVE_MAX]; /* NULL: over */
    size_t count, next;                    /* addresses; the first not yet tried */
    uint64_t next_ms, patience_ms;         /* of a race; MONO_NEVER otherwise */
    uint64_t again_ms;                     /* of a pause; MONO_NEVER otherwise */
    double pause_ms;
    uint64_t start_ms, log_ms; /* when we began; when to tell of our waiting */
    int wrong_services;
    enum greeting greeting; /* of this round */

    struct muster_error last;  /* why the last round failed */
    struct muster_error round; /* why this round fails, so far; code 0: no reason yet */
};

static void start_round(struct dialer *d);

static bool racing(const struct dialer *d)
{
    for (size_t i = 0; i < d->next; i++)
        if (d->attempts[i])
            return true;
    return false;
}

static void stop_attempts(struct dialer *d)
{
    for (size_t i = 0; i < d->next; i++)
        if (d->attempts[i])
            attempt_stop(d->attempts[i]);
    memset(d->attempts, 0, sizeof d->attempts);
    d->count = d->next = 0;
    d->next_ms = d->patience_ms = MONO_NEVER;
}

static void finish(struct dialer *d, struct dial_conn *conn,
                   const struct muster_error *err)
{
    const dial_cb cb = d->cb;

    stop_attempts(d);
    resolve_cancel(d->lookup);
    d->lookup = NULL;
    (void)uv_timer_stop(&d->timer);
    d->cb = NULL;
    cb(d->ctx, conn, err);
}

/* Who is there instead of a store, if that is on this machine and may be seen: "; pid
 * 712 (nc -l 29500, root) holds that port of this machine". */
static void put_holder(const struct dialer *d, char *to, size_t size)
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

static const char *dial_remedy(int code);

/* The words are torch's, so that a search for them finds something. */
static void give_up(struct dialer *d)
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
    err_add(&err, ": %.700s%s; %s", d->last.text, holder, dial_remedy(d->last.code));
    finish(d, NULL, &err);
}

static void dial_note(struct muster_error *verdict, int code, const char *why);

static void note_standing(struct dialer *d)
{
    for (size_t i = 0; i < d->next; i++) {
        char why[200];

        if (!d->attempts[i])
            continue;
        attempt_standing(d->attempts[i], why, sizeof why);
        dial_note(&d->round, MUSTER_ETIMEDOUT, why);
    }
}

/* A person who waits should know for what: seldom in a log, all of it for
 * LOGLEVEL=INFO. */
static void log_waiting(struct dialer *d, double pause, uint64_t now)
{
    trace(d->trace, TRACE_INFO, "store at %s port %u not reached, again in %.1f s: %s",
          d->host, d->port, pause / 1000, d->last.text);
    if (now < d->log_ms)
        return;
    d->log_ms = now + LOG_AGAIN_MS;
    trace(d->trace, TRACE_WARN, "waiting for the store at %s port %u, %u s of %u: %s",
          d->host, d->port, (unsigned)((now - d->start_ms) / 1000),
          (unsigned)(d->timeout_ms / 1000), d->last.text);
}

static void end_round(struct dialer *d)
{
    const uint64_t now = clock_mono_ms();
    double pause;

    stop_attempts(d);
    d->last = d->round;
    d->round = (struct muster_error){ 0 };
    d->wrong_services = d->last.code == MUSTER_ENOTSTORE ? d->wrong_services + 1 : 0;
    /* Who hangs up on PING may be PyTorch 2.4 or older, or may be starting. */
    const bool first_hangup =
        d->last.code == MUSTER_EHANGUP && d->greeting == GREET_PING && !d->opts.auth;
    d->greeting = first_hangup ? GREET_NUM_KEYS : GREET_PING;
    if ((d->once && !first_hangup) || now >= d->deadline_ms ||
        d->last.code == MUSTER_ENOMEM || d->last.code == MUSTER_EACCES ||
        d->wrong_services >= WRONG_SERVICE_MOST) {
        give_up(d);
        return;
    }
    pause = d->pause_ms * (0.5 + rng_unit(&d->rng));
    d->pause_ms = MIN_OF(d->pause_ms * 1.5, (double)PAUSE_MOST_MS);
    log_waiting(d, pause, now);
    d->again_ms = first_hangup ? now : now + (uint64_t)pause;
}

static void arm(struct dialer *d);
static void connect_on_attempt(void *ctx, struct attempt *a, struct dial_conn *conn,
                               int code, const char *why);

/* Tries addresses from the next one on, until one is under way. */
static void try_next(struct dialer *d)
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
        dial_note(&d->round, code, why);
    }
    d->next_ms = MONO_NEVER;
    if (!racing(d))
        end_round(d);
}

static void connect_on_attempt(void *ctx, struct attempt *a, struct dial_conn *conn,
                               int code, const char *why)
{
    struct dialer *d = ctx;

    for (size_t i = 0; i < d->next; i++)
        if (d->attempts[i] == a)
            d->attempts[i] = NULL;
    if (conn || code == 0) {
        finish(d, conn, NULL);
        return;
    }
    dial_note(&d->round, code, why);
    try_next(d);
    if (d->cb)
        arm(d);
}

/* IPv6 and IPv4 in turn, each in the resolver's order, as RFC 8305 has it. */
static void order(struct dialer *d, const struct sockaddr_storage *addrs, size_t count)
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
    struct dialer *d = ctx;

    d->lookup = NULL;
    if (status < 0) {
        dial_note(&d->round, status, err->text);
        end_round(d);
    } else {
        order(d, addrs, count);
        d->patience_ms = clock_mono_ms() + PATIENCE_MS;
        try_next(d);
    }
    if (d->cb)
        arm(d);
}

static void start_round(struct dialer *d)
{
    struct muster_error err;

    d->again_ms = MONO_NEVER;
    if (resolve_start(d->loop, d->host, d->port, connect_on_resolved, d, &d->lookup,
                      &err) < 0) {
        dial_note(&d->round, err.code, err.text);
        end_round(d);
    }
}

static void connect_on_due(uv_timer_t *timer)
{
    struct dialer *d = timer->data;
    const uint64_t now = clock_mono_ms();

    if (now >= d->deadline_ms) {
        note_standing(d);
        if (d->round.code)
            d->last = d->round;
        give_up(d);
        return;
    }
    if (now >= d->patience_ms) {
        note_standing(d);
        end_round(d);
    } else if (now >= d->again_ms) {
        start_round(d);
    } else if (now >= d->next_ms) {
        try_next(d);
    }
    if (d->cb)
        arm(d);
}

/* The loop's idea of now may be old, so the timer may come early: connect_on_due looks
 * again.
 */
static void arm(struct dialer *d)
{
    const uint64_t now = clock_mono_ms();
    uint64_t due = MIN_OF(d->deadline_ms, d->again_ms);

    due = MIN_OF(due, d->next_ms);
    due = MIN_OF(due, d->patience_ms);
    uv_update_time(d->loop);
    (void)uv_timer_start(&d->timer, connect_on_due, due > now ? due - now : 0, 0);
}

static uint64_t seed(void)
{
    uint64_t s = uv_hrtime();

    (void)uv_random(NULL, NULL, &s, sizeof s, 0, NULL);
    return s;
}

int dial_start(uv_loop_t *loop, const struct dial_opts *opts, dial_cb cb, void *ctx,
               struct dialer **out, struct muster_error *err)
{
    struct dialer *d = mem_calloc(1, sizeof *d);
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
    d->trace = opts->trace;
    d->cb = cb;
    d->ctx = ctx;
    d->pause_ms = PAUSE_FIRST_MS;
    d->next_ms = d->patience_ms = MONO_NEVER;
    d->again_ms = now; /* The first round starts from the loop. */
    d->start_ms = now;
    d->log_ms = now + LOG_FIRST_MS;
    rng_init(&d->rng, seed());
    (void)uv_timer_init(loop, &d->timer);
    d->timer.data = d;
    arm(d);
    *out = d;
    return 0;
}

const char *dial_last_failure(const struct dialer *d)
{
    return d->last.text;
}

static void connect_on_closed(uv_handle_t *handle)
{
    struct dialer *d = handle->data;

    auth_unref(d->opts.auth);
    mem_free(d->host);
    mem_free(d);
}

void dial_free(struct dialer *d)
{
    if (!d)
        return;
    d->cb = NULL;
    stop_attempts(d);
    resolve_cancel(d->lookup);
    d->lookup = NULL;
    uv_close((uv_handle_t *)&d->timer, connect_on_closed);
}

/* ---- what to say when nobody was reached ---- */

static const char *dial_remedy(int code)
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
               "behind";
    case MUSTER_EACCES:
        return "all nodes of a job need the same --token-file (or MUSTER_TOKEN)";
    case MUSTER_ETIMEDOUT:
        return "a firewall may drop packets, or the store's process may be stopped";
    default:
        return "see the reason above";
    }
}

/* What says most about the peer wins: that another service answered outweighs that a
 * second address refused. */
static int weight(int code)
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

/* Adds why one attempt failed to the verdict on all of a round. */
static void dial_note(struct muster_error *verdict, int code, const char *why)
{
    if (verdict->code == 0) {
        (void)err_set(verdict, code, "%s", why);
        return;
    }
    if (weight(code) > weight(verdict->code))
        verdict->code = code;
    if (strlen(verdict->text) < 500)
        err_add(verdict, "; %s", why);
}
