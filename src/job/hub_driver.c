/* hub_driver.c - see hub_driver.h. */
#include "job/hub_driver.h"

#include <arpa/inet.h>
#include <time.h>

#include "base/err.h"
#include "base/mem.h"

#define HUBS_MAX 1024u

struct job_hub {
    struct hub *hub; /* owned */
    char *run_id;    /* owned */
    struct job_hub *next;
};

struct hubs {
    struct job_hub *first; /* owned, the newest first */
    size_t count;
    struct hub_fx fx;
    struct buf out; /* the message that framed() made last */
};

struct hub_now hub_clock(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_REALTIME, &ts);
    return (struct hub_now){ uv_hrtime() / 1000,
                             ts.tv_sec * 1000000LL + ts.tv_nsec / 1000 };
}

/* ---- messages out ---- */

/* Sends what framed() returned. If that found no memory, the peer is disconnected: when
 * it comes back, it gets everything that it lacks. */
static void send_bytes(struct hubs *hubs, struct store_server *s, uint32_t peer,
                       struct span bytes)
{
    struct conn *c = server_conn(s, peer);

    if (!c)
        return;
    if (bytes.n)
        server_send(s, c, bytes);
    else if (buf_error(&hubs->out) == MUSTER_ENOMEM)
        conn_refuse(s, c, "out of memory");
}

/* The message behind its length, in hubs->out; empty if it does not fit. */
static struct span framed(struct hubs *hubs, const struct job_msg *m)
{
    uint8_t length[8] = { 0 };

    buf_clear(&hubs->out);
    if (buf_append(&hubs->out, length, sizeof length) < 0 ||
        job_encode(&hubs->out, m) < 0)
        return span_of(NULL, 0);
    put_u64(hubs->out.mem + hubs->out.head, buf_len(&hubs->out) - sizeof length);
    return buf_span(&hubs->out);
}

static void send_entry(struct hubs *hubs, struct store_server *s,
                       const struct job_hub *j, uint64_t wanted)
{
    const struct record *r = hub_record(j->hub);
    uint64_t number = 0;
    uint32_t peer;

    for (size_t i = r->count; i-- > 0;) {
        const struct job_msg m = { .kind = JOB_ENTRY,
                                   .bytes = record_bytes(r, i, &number) };
        if (number != wanted)
            continue;
        const struct span bytes = framed(hubs, &m);
        for (size_t k = 0; hub_next_peer(j->hub, &k, &peer);)
            send_bytes(hubs, s, peer, bytes);
        return;
    }
}

static void catch_up(struct hubs *hubs, struct store_server *s, const struct job_hub *j,
                     uint32_t peer, uint64_t above)
{
    const struct record *r = hub_record(j->hub);
    uint64_t number;

    for (size_t i = 0; i < r->count; i++) {
        const struct job_msg m = { .kind = JOB_ENTRY,
                                   .bytes = record_bytes(r, i, &number) };
        if (number > above)
            send_bytes(hubs, s, peer, framed(hubs, &m));
    }
}

static void hub_perform(struct hubs *hubs, struct store_server *s, struct job_hub *j)
{
    for (size_t i = 0; i < hubs->fx.count; i++) {
        const struct hub_effect *e = &hubs->fx.items[i];
        struct conn *c = server_conn(s, e->peer);

        switch (e->kind) {
        case HUB_SEND:
            send_bytes(hubs, s, e->peer, framed(hubs, &e->msg));
            break;
        case HUB_ENTRY:
            send_entry(hubs, s, j, e->number);
            break;
        case HUB_CATCH_UP:
            catch_up(hubs, s, j, e->peer, e->number);
            break;
        case HUB_DROP:
            if (!c)
                break;
            conn_tenant(c)->job = NULL; /* The hub knows that the peer is gone. */
            conn_refuse(s, c, "%.*s", (int)e->msg.bytes.n,
                        (const char *)e->msg.bytes.p);
            break;
        }
    }
}

static int hub_feed(struct hubs *hubs, struct store_server *s, struct job_hub *j,
                    struct hub_event *ev)
{
    int rc;

    ev->now = hub_clock();
    rc = hub_step(j->hub, ev, &hubs->fx);
    hub_perform(hubs, s, j);
    return rc;
}

/* ---- hubs ---- */

static void hub_remove(struct hubs *hubs, struct job_hub *j)
{
    struct job_hub **at = &hubs->first;

    while (*at != j)
        at = &(*at)->next;
    *at = j->next;
    hubs->count--;
    hub_free(j->hub);
    mem_free(j->run_id);
    mem_free(j);
}

/* Removes the oldest hub that nobody is attached to; false if there is none. */
static bool remove_idle(struct hubs *hubs)
{
    struct job_hub *idle = NULL;

    for (struct job_hub *j = hubs->first; j; j = j->next)
        if (hub_peers(j->hub) == 0)
            idle = j;
    if (idle)
        hub_remove(hubs, idle);
    return idle != NULL;
}

static struct job_hub *find_hub(const struct hubs *hubs, struct span run_id)
{
    struct job_hub *j = hubs->first;

    while (j && !span_eq(span_str(j->run_id), run_id))
        j = j->next;
    return j;
}

static struct job_hub *add_hub(struct hubs *hubs, struct store_server *s,
                               struct span run_id)
{
    struct job_hub *j = mem_calloc(1, sizeof *j);

    if (!j)
        return NULL;
    j->run_id = mem_strndup((const char *)run_id.p, run_id.n);
    j->hub = hub_new(run_id, server_tenant_host(s).trace);
    if (!j->run_id || !j->hub) {
        hub_free(j->hub);
        mem_free(j->run_id);
        mem_free(j);
        return NULL;
    }
    j->next = hubs->first;
    hubs->first = j;
    hubs->count++;
    return j;
}

static int hub_on_attach(struct hubs *hubs, struct store_server *s, struct conn *c,
                         const struct job_msg *m)
{
    if (m->run_id.n == 0 || m->run_id.n > 1024) {
        conn_refuse(s, c, "ATTACH has a run id of %zu bytes, expected 1 to 1024",
                    m->run_id.n);
        return 0;
    }
    struct job_hub **job = &conn_tenant(c)->job;

    *job = find_hub(hubs, m->run_id);
    if (*job)
        return 0;
    if (hubs->count >= HUBS_MAX && !remove_idle(hubs)) {
        conn_refuse(s, c, "the store coordinates %u jobs already, which is the limit",
                    HUBS_MAX);
        return 0;
    }
    *job = add_hub(hubs, s, m->run_id);
    return *job ? 0 : MUSTER_ENOMEM;
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

void hubs_print_runs(const struct hubs *hubs, struct buf *out)
{
    for (const struct job_hub *j = hubs ? hubs->first : NULL; j; j = j->next)
        if (!strchr(j->run_id, '\n'))
            (void)buf_printf(out, "%s\n", j->run_id);
}

bool hubs_take(struct hubs **at, struct store_server *s, struct conn *c,
               const struct c10d_request *req, int *rc)
{
    struct hub_event ev = { .kind = HUB_MSG, .peer = conn_peer(c) };
    char addr[INET6_ADDRSTRLEN];
    struct muster_error err;
    struct job_msg m;

    if (req->op != C10D_QUEUE_PUSH || !span_eq(req->key, span_str(JOB_KEY)))
        return false;
    *rc = 0;
    if (!*at) {
        *at = mem_calloc(1, sizeof **at);
        if (!*at) {
            *rc = MUSTER_ENOMEM;
            return true;
        }
        buf_init(&(*at)->out, JOB_MAX + 64);
    }
    if (job_decode(req->value, &m, &err) < 0) {
        conn_refuse(s, c, "%s", err.text);
        return true;
    }
    if (m.kind == JOB_ATTACH && !m.addr.n && !(m.flags & JOB_SERVES))
        m.addr = peer_address(c, addr);
    struct job_hub *const *job = &conn_tenant(c)->job;

    if (!*job && m.kind == JOB_ATTACH)
        *rc = hub_on_attach(*at, s, c, &m);
    else if (!*job)
        conn_refuse(s, c, "%s message before ATTACH", job_kind_name(m.kind));
    if (!*job || conn_closed(c))
        return true;
    ev.msg = &m;
    *rc = hub_feed(*at, s, *job, &ev);
    return true;
}

void hubs_left(struct hubs *hubs, struct store_server *s, struct conn *c)
{
    struct hub_event ev = { .kind = HUB_GONE, .peer = conn_peer(c) };
    struct job_hub *j = conn_tenant(c)->job;

    conn_tenant(c)->job = NULL;
    if (hubs && j)
        (void)hub_feed(hubs, s, j, &ev);
}

void hubs_timer(struct hubs *hubs, struct store_server *s)
{
    const uint64_t now_us = uv_hrtime() / 1000;

    for (struct job_hub *j = hubs ? hubs->first : NULL; j; j = j->next) {
        struct hub_event ev = { .kind = HUB_TIMER };

        if (hub_deadline(j->hub) <= now_us)
            (void)hub_feed(hubs, s, j, &ev);
    }
}

/* In milliseconds of clock_mono_ms, which is the clock of uv_hrtime. */
uint64_t hubs_deadline_ms(const struct hubs *hubs)
{
    uint64_t by = MONO_NEVER;

    for (const struct job_hub *j = hubs ? hubs->first : NULL; j; j = j->next)
        by = MIN_OF(by, hub_deadline(j->hub));
    return by == MONO_NEVER ? by : by / 1000 + 1;
}

void hubs_free(struct hubs *hubs)
{
    if (!hubs)
        return;
    while (hubs->first)
        hub_remove(hubs, hubs->first);
    hub_fx_fini(&hubs->fx);
    buf_fini(&hubs->out);
    mem_free(hubs);
}
