/* run_driver.c - the runs that live in a store server, one for each run id; the store's
 * extension (store/extension.h).
 *
 * Nodes of ours talk to a run (job/core/run.h) over store connections. The key that
 * torchrun's nodes read and compare-and-set shows its seats. To the store that key is
 * an ordinary one: we bring it up to date just before a request reads it, and look at
 * it after a request that may have written it.
 *
 * From top to bottom: messages out, feed and perform, messages in, time, the end, the
 * key that torchrun's nodes use, the runs, and the keys of rounds that are over. */
#include <arpa/inet.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/socket.h>

#include "base/err.h"
#include "base/map.h"
#include "base/mem.h"
#include "job/core/run.h"
#include "job/run_clock.h"
#include "loop/clock.h"
#include "rendezvous/core/rank_exchange.h"
#include "store/core/quote.h"
#include "store/core/reserved.h"
#include "store/extension.h"

#define RUN_KEY       "/torch.rendezvous." /* the run id follows */
#define RUNS_MOST     1024u                /* at once */
#define RUNS_EACH     256u                 /* begun from one address */
#define RUN_ID_MAX    8192u
#define UNJOINED_MOST 16384u /* nodes that have sent HELLO but not JOIN */

/* One run. A run that is over stays, and stays closed, until others need the room;
 * after that its key still says so. */
struct hosted {
    struct map_link link;     /* by the key's name; its bytes lie after the struct */
    struct run *run;          /* owned */
    bool watched;             /* a client waits for changes of the key */
    int64_t first_kept_round; /* the first round whose keys were not deleted */
    bool broken;              /* `run` can only be freed */
    size_t conns;             /* connections whose `run` this is */
    uint64_t idle_ms;         /* since when there has been none */
    uint64_t looked_after;    /* the request after which we last looked at the key */
    uint8_t from[16];         /* the address of the node that began it */
    struct hosted *next;
};

struct extension_state {
    struct map runs;
    size_t unjoined;   /* nodes that have said HELLO and not yet JOIN */
    uint64_t requests; /* of all clients so far */
    struct hosted *first;
    uv_timer_t timer;
    uint64_t armed_ms; /* when the timer is due */
    struct run_fx fx;
    struct store_fx store_fx;
    struct buf out; /* the message being sent */
};

static struct extension_state *extension_of(const struct store_server *s)
{
    return *server_extension((struct store_server *)s);
}

static int run_feed(struct store_server *s, struct hosted *run, struct run_event *ev);
static void runs_on_timer(uv_timer_t *timer);

/* Finds the run or makes it. Returns MUSTER_EFULL if there are too many under way, or
 * MUSTER_ENOMEM. */
static int run_of_id(struct store_server *s, struct conn *c, struct span run_id,
                     struct hosted **out);
static void hosted_remove(struct store_server *s, struct hosted *run);
static void run_hold(struct hosted *run, struct conn *c);       /* c is its node's */
static void run_let_go(struct store_server *s, struct conn *c); /* undoes run_hold() */

/* Writes the run's state into the store, if it has changed; aged: also if only
 * the heartbeats there are old. This wakes clients that wait for the key to change. */
static void runs_show(struct store_server *s, struct hosted *run, bool aged);
/* Tells the run if somebody else has changed the key. */
static void runs_look(struct store_server *s, struct hosted *run);

/* Deletes the keys by which the nodes of a round told each other their ranks and the
 * workers' address. torch never deletes them; a job that restarts for weeks would fill
 * the store. run_key: as on the wire, "/torch.rendezvous.<run id>". */
static void store_forget_round(struct store *s, struct store_fx *fx,
                               struct span run_key, int64_t round);

#define FORGET_MOST 8 /* rounds whose keys are deleted at once */

static struct extension_state *runs_new(struct store_server *s)
{
    const struct extension_host host = server_extension_host(s);
    struct extension_state *all = mem_calloc(1, sizeof *all);

    if (!all)
        return NULL;
    map_init(&all->runs, host.seed);
    all->armed_ms = MONO_NEVER;
    store_fx_init(&all->store_fx);
    buf_init(&all->out, WIRE_MAX + 64);
    (void)uv_timer_init(host.loop, &all->timer);
    all->timer.data = s;
    return all;
}

/* ---- messages ---- */

/* Begins a message in `out`, behind room for its length. */
static struct buf *message_begin(struct store_server *s)
{
    struct buf *out = &extension_of(s)->out;
    const uint8_t length[8] = { 0 };

    buf_clear(out);
    (void)buf_append(out, length, sizeof length);
    return out;
}

/* Sends what is in `out` with its length. Without memory the peer is disconnected: when
 * it comes back, it gets everything that it lacks. */
static void message_send(struct store_server *s, struct conn *c)
{
    struct buf *out = &extension_of(s)->out;

    if (!c)
        return;
    if (buf_error(out) == MUSTER_ENOMEM) {
        conn_refuse(s, c, "out of memory");
        return;
    }
    if (buf_error(out) < 0)
        return; /* It does not fit. */
    put_u64(out->mem + out->head, buf_len(out) - 8);
    server_send(s, c, buf_span(out));
}

static void send_msg(struct store_server *s, struct conn *c, const struct run_msg *m)
{
    (void)msg_encode(message_begin(s), m);
    message_send(s, c);
}

/* Detects the end of a member's connection as soon as its machine says so. Silence
 * alone must not end it: how long a node may be silent is for the run to judge,
 * and the node itself counts on that (core/fence.h). */
static void watch_socket(int fd)
{
    const int on = 1, idle_s = 5, every_s = 2, probes = 3;
    const unsigned unacked_ms = 24u * 3600 * 1000;

    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof every_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacked_ms, sizeof unacked_ms);
}

/* Tells the node which limit it ran into. */
static void turn_away(struct store_server *s, struct conn *c, struct span run_id,
                      const char *why)
{
    char text[320], name[QUOTE_MAX];

    (void)snprintf(text, sizeof text, "the store %s %s",
                   server_extension_host(s).address, why);
    if (server_may_log(s))
        log_line(server_extension_host(s).log, LOG_WARN, AT_RENDEZVOUS,
                 "turned a node of run %s away: %s", quote(run_id, name), text);
    send_msg(s, c,
             &(struct run_msg){
                 .kind = MSG_REFUSED, .code = MUSTER_EFULL, .text = span_str(text) });
}

static void no_room(struct store_server *s, struct conn *c, struct span run_id)
{
    char why[256];

    (void)snprintf(
        why, sizeof why,
        "already has %u runs under way, or %u that were begun from one address, "
        "and cannot take more: end some of them, or use another store for this "
        "one",
        RUNS_MOST, RUNS_EACH);
    turn_away(s, c, run_id, why);
}

/* Where the connection comes from: the address of a node that was given none with
 * --local-addr. */
static struct span peer_address(const struct conn *c, char text[INET6_ADDRSTRLEN])
{
    struct in6_addr ip;

    conn_address(c, ip.s6_addr);
    const bool v4 = IN6_IS_ADDR_V4MAPPED(&ip);
    const void *at = v4 ? &ip.s6_addr[12] : (const void *)&ip;
    const bool known = !IN6_IS_ADDR_UNSPECIFIED(&ip) &&
                       inet_ntop(v4 ? AF_INET : AF_INET6, at, text, INET6_ADDRSTRLEN);

    return known ? span_str(text) : span_of(NULL, 0);
}

/* To everybody who shares the record; it is encoded once. */
static void send_entry(struct store_server *s, const struct recorder *h,
                       uint64_t wanted)
{
    const struct record *r = recorder_record(h);
    uint64_t number = 0;
    uint32_t peer;

    for (size_t i = r->count; i-- > 0;) {
        const struct run_msg m = { .kind = MSG_ENTRY,
                                   .bytes = record_bytes(r, i, &number) };
        if (number != wanted)
            continue;
        (void)msg_encode(message_begin(s), &m);
        for (size_t k = 0; recorder_next_peer(h, &k, &peer);)
            message_send(s, server_conn(s, peer));
        return;
    }
}

static void catch_up(struct store_server *s, const struct recorder *h, uint32_t peer,
                     uint64_t above)
{
    const struct record *r = recorder_record(h);
    uint64_t number;

    for (size_t i = 0; i < r->count; i++) {
        const struct run_msg m = { .kind = MSG_ENTRY,
                                   .bytes = record_bytes(r, i, &number) };
        if (number > above)
            send_msg(s, server_conn(s, peer), &m);
    }
}

/* ---- feed and perform ---- */

/* The run knows that the peer is gone. */
static void perform_drop(struct store_server *s, uint32_t peer, struct span why)
{
    struct conn *c = server_conn(s, peer);

    if (!c)
        return;
    run_let_go(s, c);
    conn_refuse(s, c, "%.*s", (int)why.n, (const char *)why.p);
}

static void perform(struct store_server *s, const struct recorder *h)
{
    const struct run_fx *fx = &extension_of(s)->fx;

    for (size_t i = 0; i < fx->count; i++) {
        const struct run_effect *e = &fx->items[i];

        switch (e->kind) {
        case RUN_SEND:
            send_msg(s, server_conn(s, e->peer), &e->msg);
            break;
        case RUN_ENTRY:
            send_entry(s, h, e->number);
            break;
        case RUN_CATCH_UP:
            catch_up(s, h, e->peer, e->number);
            break;
        case RUN_DROP:
            perform_drop(s, e->peer, e->msg.text);
            break;
        }
    }
}

/* Deletes the keys of rounds before the last one, since slow nodes may still read keys
 * of the round that has just ended. How many are deleted is bounded, since a round
 * number may come from a stranger's state or from before our restart. */
static void forget_rounds(struct store_server *s, struct hosted *run)
{
    const int64_t round = seats_round(run_seats(run->run));

    if (round > 1 && round - 1 - run->first_kept_round > FORGET_MOST)
        run->first_kept_round = round - 1 - FORGET_MOST;
    for (; run->first_kept_round + 1 < round; run->first_kept_round++)
        store_forget_round(server_extension_host(s).store, &extension_of(s)->store_fx,
                           run->link.key, run->first_kept_round);
}

/* The timer may be due earlier than any run wants it, and then it looks again. So a
 * message costs the same however many runs there are. */
static void arm(struct store_server *s, uint64_t due_us)
{
    const uint64_t due_ms = due_us == MONO_NEVER ? due_us : due_us / 1000 + 1;

    if (due_ms >= extension_of(s)->armed_ms)
        return;
    extension_of(s)->armed_ms = due_ms;
    clock_arm(&extension_of(s)->timer, runs_on_timer, due_ms);
}

/* A run that found no memory is replaced. Its nodes come back to the new one, and say
 * again what it must know. */
static void run_replace(struct store_server *s, struct hosted *run)
{
    const size_t fixed = sizeof RUN_KEY - 1;
    const struct span key = run->link.key;
    uint32_t peer;

    log_line(server_extension_host(s).log, LOG_ERROR, AT_RENDEZVOUS,
             "store %s: out of memory for run %.*s; its nodes have to come back",
             server_extension_host(s).address, (int)(key.n - fixed),
             (const char *)key.p + fixed);
    for (uint32_t i = 0; run_next_peer(run->run, &i, &peer);)
        perform_drop(s, peer, span_str("out of memory"));

    struct run *fresh =
        run_new(span_of(key.p + fixed, key.n - fixed), server_extension_host(s).log);

    run->broken = !fresh;
    if (!fresh)
        return; /* The next message tries again. */
    run_free(run->run);
    run->run = fresh;
}

static int run_feed(struct store_server *s, struct hosted *run, struct run_event *ev)
{
    struct muster_error err;

    if (run->broken)
        run_replace(s, run);
    if (run->broken)
        return MUSTER_ENOMEM;
    ev->now = run_clock();

    const int rc = run_step(run->run, ev, &extension_of(s)->fx, &err);

    if (rc == MUSTER_ENOMEM) {
        run_replace(s, run);
        return rc;
    }
    if (rc < 0)
        log_line(server_extension_host(s).log, LOG_ERROR, AT_RENDEZVOUS,
                 "store %s, key %.*s: %s", server_extension_host(s).address,
                 (int)run->link.key.n, (const char *)run->link.key.p, err.text);
    perform(s, run_recorder(run->run));
    arm(s, run_deadline(run->run));
    if (!run_seats(run->run))
        return rc;
    forget_rounds(s, run);
    if (run->watched && ev->kind != RUN_SEEN)
        runs_show(s, run, false);
    return rc;
}

/* ---- messages in ---- */

static int on_hello(struct store_server *s, struct conn *c, struct run_msg *m)
{
    struct run_event ev = { .kind = RUN_MSG, .peer = conn_peer(c), .msg = m };
    const bool seats = m->flags & MSG_SEATS;
    char addr[INET6_ADDRSTRLEN];
    struct hosted *run;
    int rc;

    if (m->run_id.n == 0 || m->run_id.n > RUN_ID_MAX) {
        conn_refuse(s, c, "HELLO has a run id of %zu bytes, expected 1 to %u",
                    m->run_id.n, RUN_ID_MAX);
        return 0;
    }
    if (seats && extension_of(s)->unjoined >= UNJOINED_MOST) {
        turn_away(s, c, m->run_id,
                  "has 16384 nodes that have not sent JOIN, and cannot take more");
        return 0;
    }
    rc = run_of_id(s, c, m->run_id, &run);
    if (rc == MUSTER_EFULL) {
        no_room(s, c, m->run_id);
        return 0;
    }
    if (rc < 0)
        return rc;
    if (!m->where.n && !(m->flags & MSG_SERVES))
        m->where = peer_address(c, addr);
    const bool begun = seats && !run_seats(run->run);

    run_hold(run, c);
    conn_extension(c)->unjoined = seats;
    extension_of(s)->unjoined += seats;
    watch_socket(conn_socket(c));
    if (begun) /* torchrun's nodes may have begun the run already. */
        runs_look(s, run);
    rc = run_feed(s, run, &ev);
    if (begun && !run_recorder(run->run) &&
        (!run_seats(run->run) || seats_nodes(run_seats(run->run)) == 0)) {
        run_let_go(s, c); /* It was refused. */
        hosted_remove(s, run);
    }
    return rc;
}

static int on_message(struct store_server *s, struct conn *c, struct span bytes)
{
    struct run_event ev = { .kind = RUN_MSG, .peer = conn_peer(c) };
    struct extension_conn *const at = conn_extension(c);
    struct muster_error err;
    struct run_msg m;

    if (msg_decode(bytes, &m, &err) < 0) {
        conn_refuse(s, c, "%s", err.text);
        return 0;
    }
    if (!at->run && m.kind == MSG_HELLO)
        return on_hello(s, c, &m);
    if (!at->run) {
        conn_refuse(s, c, "%s message before HELLO", msg_kind_name(m.kind));
        return 0;
    }
    if (m.kind == MSG_JOIN && at->unjoined) {
        at->unjoined = false;
        extension_of(s)->unjoined--;
    }
    ev.msg = &m;
    return run_feed(s, at->run, &ev);
}

/* A node of an older release. It is told in its own words, so that its user reads why:
 * version 1 has a code before the text, and version 2 has not. */
static void refuse_version(struct store_server *s, struct conn *c, uint8_t version)
{
    struct buf *out = message_begin(s);
    char text[320];

    (void)snprintf(text, sizeof text,
                   "this node speaks version %u of muster's protocol between nodes, "
                   "and the store %.80s speaks version %u: use the same release of "
                   "muster on all nodes",
                   version, server_extension_host(s).address, WIRE_VERSION);
    (void)buf_u8(out, version);
    (void)buf_u8(out, version == 1 ? 8 : 20); /* REFUSED */
    if (version == 1)
        (void)buf_u32(out, (uint32_t)MUSTER_EPROTO);
    (void)buf_u32(out, (uint32_t)strlen(text));
    (void)buf_append_str(out, text);
    message_send(s, c);
    if (server_may_log(s))
        log_line(server_extension_host(s).log, LOG_WARN, AT_RENDEZVOUS,
                 "turned a node away: %s", text);
}

/* For `muster status HOST:PORT`. */
static void print_runs(const struct store_server *s, struct buf *out)
{
    for (const struct hosted *r = extension_of(s) ? extension_of(s)->first : NULL; r;
         r = r->next)
        if (run_recorder(r->run) && !memchr(r->link.key.p, '\n', r->link.key.n))
            (void)buf_printf(out, "%.*s\n", (int)(r->link.key.n - (sizeof RUN_KEY - 1)),
                             (const char *)r->link.key.p + sizeof RUN_KEY - 1);
}

/* For nodes that wait for others in vain: those may be waiting under another id. */
static void print_gathered(struct store_server *s, struct buf *out)
{
    for (const struct hosted *run = extension_of(s) ? extension_of(s)->first : NULL;
         run; run = run->next) {
        const struct seats *seats = run_seats(run->run);
        const struct span key = run->link.key;
        const size_t fixed = sizeof RUN_KEY - 1;

        if (seats && seats_nodes(seats) > 0 && !memchr(key.p, '\n', key.n))
            (void)buf_printf(out, "%zu %.*s\n", seats_nodes(seats),
                             (int)(key.n - fixed), (const char *)key.p + fixed);
    }
}

/* Answers `muster status HOST:PORT`, and nodes that ask for other runs. */
static bool people_take(struct store_server *s, struct conn *c,
                        const struct c10d_request *req)
{
    struct c10d_reply r = { .op = C10D_GET };
    struct buf text, out;

    const bool gathered = span_eq(req->key, span_str(RESERVED_GATHERED));

    if (req->op != C10D_GET ||
        (!gathered && !span_eq(req->key, span_str(RESERVED_RUNS))))
        return false;
    buf_init(&text, 65536);
    buf_init(&out, 131072);
    if (gathered)
        print_gathered(s, &text);
    else
        print_runs(s, &text);
    r.value = buf_span(&text);
    if (c10d_encode_reply(&out, &r) < 0)
        conn_refuse(s, c, "out of memory");
    else
        server_send(s, c, buf_span(&out));
    buf_fini(&text);
    buf_fini(&out);
    return true;
}

static bool runs_take(struct store_server *s, struct conn *c,
                      const struct c10d_request *req, int *rc)
{
    const uint8_t old = span_eq(req->key, span_str(WIRE_KEY_1))   ? 1
                        : span_eq(req->key, span_str(WIRE_KEY_2)) ? 2
                                                                  : 0;

    *rc = 0;
    if (people_take(s, c, req))
        return true;
    if (req->op != C10D_QUEUE_PUSH ||
        (!old && !span_eq(req->key, span_str(RESERVED_RUN))))
        return false;
    if (!extension_of(s))
        *server_extension(s) = runs_new(s);
    if (!extension_of(s))
        *rc = MUSTER_ENOMEM;
    else if (old)
        refuse_version(s, c, old);
    else
        *rc = on_message(s, c, req->value);
    return true;
}

static void runs_left(struct store_server *s, struct conn *c)
{
    struct run_event ev = { .kind = RUN_GONE,
                            .peer = conn_peer(c),
                            .hung_up = conn_hung_up(c) };

    (void)run_feed(s, conn_extension(c)->run, &ev);
    run_let_go(s, c);
}

static bool runs_await(const struct store_server *s)
{
    const uint64_t now_ms = clock_mono_ms();

    for (const struct hosted *r = extension_of(s)->first; r; r = r->next)
        if (run_seats(r->run) && now_ms < seats_awaits_until_ms(run_seats(r->run)))
            return true;
    return false;
}

/* ---- time ---- */

static void runs_on_timer(uv_timer_t *timer)
{
    struct store_server *s = timer->data;
    uint64_t due = MONO_NEVER;

    extension_of(s)->armed_ms = MONO_NEVER;
    for (struct hosted *run = extension_of(s)->first; run; run = run->next) {
        struct run_event ev = { .kind = RUN_TIMER };

        if (run_deadline(run->run) <= run_clock().mono_us)
            (void)run_feed(s, run, &ev);
        due = MIN_OF(due, run_deadline(run->run));
    }
    arm(s, due);
    server_end_turn(s);
}

/* ---- the end ---- */

static void runs_close(struct store_server *s, uv_close_cb cb)
{
    uv_close((uv_handle_t *)&extension_of(s)->timer, cb);
}

static void runs_free(struct store_server *s)
{
    if (!extension_of(s))
        return;
    while (extension_of(s)->first)
        hosted_remove(s, extension_of(s)->first);
    map_fini(&extension_of(s)->runs);
    run_fx_fini(&extension_of(s)->fx);
    store_fx_fini(&extension_of(s)->store_fx);
    buf_fini(&extension_of(s)->out);
    mem_free(extension_of(s));
    *server_extension(s) = NULL;
}

/* ---- the key by which torchrun's nodes read and change the state. It is brought up to
 * date before a request reads it, and looked at after a request that may have changed
 * it. ---- */

#define NOBODY UINT32_MAX /* the server itself, as a peer of the store */

static struct hosted *run_of_key(struct store_server *s, struct span key)
{
    const struct reserved r = reserved_parse(key);
    struct map_link *link;

    if (r.kind == RESERVED_IS_CHANGED)
        key = r.key;
    if (key.n < sizeof RUN_KEY || memcmp(key.p, RUN_KEY, sizeof RUN_KEY - 1) != 0)
        return NULL;
    link = map_get(&extension_of(s)->runs, key);

    struct hosted *run = link ? CONTAINER_OF(link, struct hosted, link) : NULL;

    return run && run_seats(run->run) ? run : NULL;
}

static bool key_value(struct store_server *s, struct hosted *run, struct span *value)
{
    const struct c10d_request get = { .op = C10D_GET, .key = run->link.key };
    const struct store_event ev = { STORE_REQUEST, .peer = NOBODY, .request = &get };

    if (store_step(server_extension_host(s).store, &ev, &extension_of(s)->store_fx) <
            0 ||
        extension_of(s)->store_fx.count != 1 ||
        extension_of(s)->store_fx.items[0].kind != STORE_REPLY)
        return false;
    *value = extension_of(s)->store_fx.items[0].reply.value;
    return true;
}

static void runs_show(struct store_server *s, struct hosted *run, bool aged)
{
    const struct now now = clock_now();
    struct c10d_request set = { .op = C10D_SET, .key = run->link.key };

    if (!seats_stale(run_seats(run->run), now, aged) ||
        seats_view(run_seats(run->run), now, &set.value) < 0)
        return;
    server_set(s, &set);
}

static void runs_look(struct store_server *s, struct hosted *run)
{
    const struct seats *seats = run_seats(run->run);
    struct run_event ev = { .kind = RUN_SEEN };

    if (!key_value(s, run, &ev.value) || ev.value.n == 0 ||
        (seats && span_eq(ev.value, seats_last_view(seats))))
        return;
    (void)run_feed(s, run, &ev);
    /* Without memory for the step, the run has begun anew, and its seats are gone. */
    if (run->watched && run_seats(run->run))
        runs_show(s, run, false);
}

/* Calls fn for each run that the request's keys name. */
static void each_run(struct store_server *s, const struct c10d_request *req,
                     void (*fn)(struct store_server *, struct hosted *,
                                const struct c10d_request *, struct span))
{
    struct c10d_list list = req->list;
    struct span key = req->key;
    struct hosted *run;

    if (list.count == 0) {
        run = run_of_key(s, key);
        if (run)
            fn(s, run, req, key);
        return;
    }
    /* The values in a MULTI_SET do not name a run. */
    while (c10d_list_next(&list, &key)) {
        run = run_of_key(s, key);
        if (run)
            fn(s, run, req, key);
    }
}

static void before(struct store_server *s, struct hosted *run,
                   const struct c10d_request *req, struct span key)
{
    if (reserved_parse(key).kind == RESERVED_IS_CHANGED)
        run->watched = true;
    /* A node that compares has just read the key, and a fresher heartbeat in it would
     * only make its write fail. */
    runs_show(s, run, req->op != C10D_COMPARE_SET);
}

static void after(struct store_server *s, struct hosted *run,
                  const struct c10d_request *req, struct span key)
{
    (void)key;
    if (run->looked_after == extension_of(s)->requests)
        return; /* A request may name the key a thousand times. */
    run->looked_after = extension_of(s)->requests;
    switch (req->op) {
    case C10D_SET:
    case C10D_COMPARE_SET:
    case C10D_ADD:
    case C10D_APPEND:
    case C10D_MULTI_SET:
    case C10D_BARRIER:
        runs_look(s, run);
        return;
    default:
        return;
    }
}

static void runs_before(struct store_server *s, const struct c10d_request *req)
{
    each_run(s, req, before);
}

static void runs_after(struct store_server *s, const struct c10d_request *req)
{
    extension_of(s)->requests++;
    each_run(s, req, after);
}

/* ---- the runs: made by the first HELLO, dropped when another run needs the room
 * ---- */

static struct hosted *run_add(struct store_server *s, struct span key)
{
    const size_t fixed = sizeof RUN_KEY - 1;
    struct hosted *run;

    if (map_reserve(&extension_of(s)->runs, 1) < 0)
        return NULL;
    run = mem_calloc(1, sizeof *run + key.n);
    if (!run)
        return NULL;
    run->run =
        run_new(span_of(key.p + fixed, key.n - fixed), server_extension_host(s).log);
    if (!run->run) {
        mem_free(run);
        return NULL;
    }
    memcpy(run + 1, key.p, key.n);
    run->link.key = span_of((uint8_t *)(run + 1), key.n);
    map_add(&extension_of(s)->runs, &run->link);
    run->next = extension_of(s)->first;
    extension_of(s)->first = run;
    return run;
}

static void hosted_remove(struct store_server *s, struct hosted *run)
{
    struct hosted **at = &extension_of(s)->first;

    while (*at != run)
        at = &(*at)->next;
    *at = run->next;
    map_remove(&extension_of(s)->runs, &run->link);
    run_free(run->run);
    mem_free(run);
}

/* Drops the run that nobody has needed for the longest time; false if all are needed.
 * Its key keeps what a node that comes late must know: that it is closed, and how many
 * rounds it had. */
static bool make_room(struct store_server *s)
{
    struct hosted *oldest = NULL;

    for (struct hosted *run = extension_of(s)->first; run; run = run->next)
        if (run->conns == 0 &&
            (!run_seats(run->run) || seats_over(run_seats(run->run))) &&
            (!oldest || run->idle_ms < oldest->idle_ms))
            oldest = run;
    if (!oldest)
        return false;
    const struct seats *seats = run_seats(oldest->run);
    if (seats && (seats_closed(seats) || seats_round(seats) > 0))
        runs_show(s, oldest, false);
    hosted_remove(s, oldest);
    return true;
}

/* How many runs under way were begun from the address. */
static size_t runs_from(const struct store_server *s, const uint8_t ip[16])
{
    size_t n = 0;

    for (const struct hosted *r = extension_of(s)->first; r; r = r->next)
        n += r->conns && memcmp(r->from, ip, 16) == 0;
    return n;
}

static int run_of_id(struct store_server *s, struct conn *c, struct span run_id,
                     struct hosted **out)
{
    uint8_t key[sizeof RUN_KEY + RUN_ID_MAX];
    const size_t fixed = sizeof RUN_KEY - 1;
    const struct span name = span_of(key, fixed + run_id.n);
    struct map_link *link;

    memcpy(key, RUN_KEY, fixed);
    memcpy(key + fixed, run_id.p, run_id.n);
    link = map_get(&extension_of(s)->runs, name);
    if (link) {
        *out = CONTAINER_OF(link, struct hosted, link);
        return 0;
    }
    uint8_t ip[16];

    conn_address(c, ip);
    if (runs_from(s, ip) >= RUNS_EACH ||
        (extension_of(s)->runs.count >= RUNS_MOST && !make_room(s)))
        return MUSTER_EFULL;
    *out = run_add(s, name);
    if (!*out)
        return MUSTER_ENOMEM;
    memcpy((*out)->from, ip, sizeof ip);
    return 0;
}

static void run_hold(struct hosted *run, struct conn *c)
{
    conn_extension(c)->run = run;
    run->conns++;
}

static void run_let_go(struct store_server *s, struct conn *c)
{
    struct extension_conn *const at = conn_extension(c);

    if (!at->run)
        return;
    if (--at->run->conns == 0)
        at->run->idle_ms = clock_now().mono_ms;
    extension_of(s)->unjoined -= at->unjoined;
    *at = (struct extension_conn){ 0 };
}

/* ---- the keys of rounds that are over ---- */

/* We no longer know how many nodes there were, and some may never have written their
 * keys. So we go on until this many ranks in a row have none. */
#define GAP_MOST 64

static bool forget(struct store *s, struct store_fx *fx, struct buf *key, size_t stem,
                   const char *name, int64_t number)
{
    struct c10d_request del = { .op = C10D_DELETE_KEY };
    const struct store_event ev = { STORE_REQUEST, .peer = UINT32_MAX,
                                    .request = &del };

    key->len = stem;
    if (buf_append_str(key, name) < 0 ||
        (number >= 0 && buf_printf(key, "%" PRId64, number) < 0))
        return false;
    del.key = buf_span(key);
    return store_step(s, &ev, fx) == 0 && fx->count == 1 &&
           fx->items[0].kind == STORE_REPLY && fx->items[0].reply.number == 1;
}

static void store_forget_round(struct store *s, struct store_fx *fx,
                               struct span run_key, int64_t round)
{
    static const char *const lists[] = { RANKS_ROLE_KEY, RANKS_ASSIGNED_KEY };
    struct buf key;

    buf_init(&key, SIZE_MAX);
    if (buf_append_span(&key, run_key) == 0 &&
        buf_printf(&key, ".%" PRId64 "/", round) == 0) {
        const size_t stem = buf_len(&key);

        (void)forget(s, fx, &key, stem, "MASTER_ADDR", -1);
        (void)forget(s, fx, &key, stem, "MASTER_PORT", -1);
        for (size_t i = 0; i < ARRAY_LEN(lists); i++)
            for (int64_t rank = 0, gap = 0; gap < GAP_MOST; rank++)
                gap = forget(s, fx, &key, stem, lists[i], rank) ? 0 : gap + 1;
    }
    buf_fini(&key);
}

const struct store_extension run_extension = {
    .take = runs_take,
    .before = runs_before,
    .after = runs_after,
    .left = runs_left,
    .awaits = runs_await,
    .close = runs_close,
    .free = runs_free,
};
