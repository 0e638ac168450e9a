/* master_addr.c - see master_addr.h: which node's address counts, the keys, the
 * questions and answers, and the step. */
#include "rendezvous/core/master_addr.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/err.h"
#include "rendezvous/core/endpoint.h"

/* torch's nodes poll every second, so rank 0 should have published by then. After that
 * we look at earlier rounds. */
#define PATIENT_MS 3000u
/* How long after the connection broke we join again, since rank 0 may have published to
 * a store that is gone. */
#define REJOIN_MS 5000u

void master_addr_reset(struct master_addr *m)
{
    dialogue_fini(&m->dialogue);
    dialogue_init(&m->dialogue);
    m->back = 0;
    m->remembered |= !m->all_read;
}

bool master_addr_moves(const struct master_addr *m)
{
    return m->share && m->all_read && !m->remembered;
}

/* ---- which node's address it is ---- */

static bool owner_is(const struct master_addr *m, const struct rdzv_node *n)
{
    return m->owner_addr[0] && span_eq(n->addr, span_str(m->owner_addr)) &&
           n->pid == m->owner_pid && n->local_id == m->owner_id;
}

static bool owner_is_member(const struct master_addr *m)
{
    for (size_t i = 0; i < m->count; i++) {
        if (owner_is(m, &m->members[i]))
            return true;
    }
    return false;
}

static bool is_member_addr(const struct master_addr *m, const char *addr)
{
    for (size_t i = 0; i < m->count; i++) {
        if (span_eq(m->members[i].addr, span_str(addr)))
            return true;
    }
    return false;
}

/* Takes the address that counts from now on, and records which node owns it. An address
 * that is published again keeps its owner. */
static void take(struct master_addr *m, const struct master_address *at)
{
    const struct rdzv_node *rank0 = &m->members[0];

    if (strcmp(m->known.host, at->host) == 0 && m->known.port == at->port)
        return;
    /* The address may be another node's server that rank 0 uses in this round. In the
     * next round rank 0 may serve by itself and publish that, so we do not count the
     * address as rank 0's. */
    const bool borrowed = m->rank != 0 && !span_eq(rank0->addr, span_str(at->host)) &&
                          is_member_addr(m, at->host);
    const size_t n = borrowed || rank0->addr.n > MASTER_HOST_MAX ? 0 : rank0->addr.n;

    if (n > 0)
        memcpy(m->owner_addr, rank0->addr.p, n);
    m->owner_addr[n] = '\0';
    m->owner_pid = rank0->pid;
    m->owner_id = rank0->local_id;
    m->known = *at;
}

static int fail(const struct master_addr *m, struct dialogue_fx *fx, int code,
                const char *fmt, ...)
{
    struct muster_error why;
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(why.text, sizeof why.text, fmt, args);
    va_end(args);
    return dialogue_fail(fx, code,
                         "agreeing on MASTER_ADDR in round %" PRIu64
                         " of run '%.200s': %.700s",
                         m->round, m->run_id, why.text);
}

/* ---- the two keys of a round ---- */

static int add_key(struct buf *list, const struct master_addr *m, uint64_t round,
                   const char *name)
{
    struct buf key;
    int rc;

    buf_init(&key, SIZE_MAX);
    rc = buf_printf(&key, "torch.rendezvous.%s.%" PRIu64 "/%s", m->run_id, round, name);
    if (rc == 0)
        rc = c10d_list_add(list, buf_span(&key));
    buf_fini(&key);
    return rc < 0 ? MUSTER_ENOMEM : 0;
}

/* Adds both keys, each followed by its value from `known` if values is set. */
static int add_keys(struct buf *list, const struct master_addr *m, uint64_t round,
                    bool values)
{
    char port[8];
    int rc = add_key(list, m, round, "MASTER_ADDR");

    if (rc == 0 && values)
        rc = c10d_list_add(list, span_str(m->known.host));
    if (rc == 0)
        rc = add_key(list, m, round, "MASTER_PORT");
    (void)snprintf(port, sizeof port, "%u", (unsigned)m->known.port);
    if (rc == 0 && values)
        rc = c10d_list_add(list, span_str(port));
    return rc < 0 ? MUSTER_ENOMEM : 0;
}

int master_addr_old_keys(const struct master_addr *m, struct buf *list)
{
    if (m->rank != 0 || m->told || m->round <= MASTER_MAX_BACK)
        return 0;
    return add_keys(list, m, m->round - MASTER_MAX_BACK - 1, false);
}

/* Parses the two values of a MULTI_GET. Anybody can write to the store, so they are not
 * trusted. */
static bool parse(const struct c10d_reply *reply, struct master_address *out)
{
    struct c10d_list list = reply->list;
    struct span h, p;
    int32_t port;

    if (!c10d_list_next(&list, &h) || !c10d_list_next(&list, &p) || h.n == 0 ||
        h.n > MASTER_HOST_MAX || memchr(h.p, '\0', h.n) || memchr(h.p, '\n', h.n) ||
        !port_parse(p, &port) || port == 0)
        return false;
    out->port = (uint16_t)port;
    memcpy(out->host, h.p, h.n);
    out->host[h.n] = '\0';
    return true;
}

/* ---- questions ---- */

/* A SET has no answer, so rank 0 checks in the same request that its keys are there. */
static int ask_publish(struct master_addr *m, struct now now, struct dialogue_fx *fx)
{
    struct store_dialogue *t = &m->dialogue;
    struct buf list, keys;

    buf_init(&list, SIZE_MAX);
    buf_init(&keys, SIZE_MAX);
    if (add_keys(&list, m, m->round, true) < 0 ||
        add_keys(&keys, m, m->round, false) < 0) {
        buf_fini(&list);
        buf_fini(&keys);
        return MUSTER_ENOMEM;
    }
    m->stage = MASTER_PUBLISHING;
    dialogue_ask(t, &list, &keys, 2, false, now, fx);
    t->parts[0] = (struct c10d_request){ .op = C10D_MULTI_SET,
                                         .list = { buf_span(&t->list), 2 } };
    t->parts[1] =
        (struct c10d_request){ .op = C10D_CHECK, .list = { buf_span(&t->value), 2 } };
    return 0;
}

static int ask_keys(struct master_addr *m, enum master_stage stage, uint64_t round,
                    struct now now, struct dialogue_fx *fx)
{
    struct store_dialogue *t = &m->dialogue;
    struct buf keys;

    buf_init(&keys, SIZE_MAX);
    if (add_keys(&keys, m, round, false) < 0) {
        buf_fini(&keys);
        return MUSTER_ENOMEM;
    }
    m->stage = stage;
    dialogue_ask(t, &keys, NULL, 1, stage != MASTER_CHECKING, now, fx);
    t->parts[0] = (struct c10d_request){
        .op = stage == MASTER_CHECKING ? C10D_CHECK : C10D_MULTI_GET,
        .list = { buf_span(&t->list), 2 },
    };
    return 0;
}

static int act(struct master_addr *m, enum master_stage stage, enum master_do what,
               struct dialogue_fx *fx)
{
    m->stage = stage;
    m->dialogue.asking = true;
    fx->kind = DIALOGUE_DO;
    fx->what = (int)what;
    return 0;
}

static int serve(struct master_addr *m, struct dialogue_fx *fx)
{
    return act(m, MASTER_SERVING, m->share ? MASTER_SERVE : MASTER_FREE_PORT, fx);
}

static int probe(struct master_addr *m, const struct master_address *at,
                 struct dialogue_fx *fx)
{
    m->found = *at;
    return act(m, MASTER_PROBING, MASTER_PROBE, fx);
}

/* Looks one round further back. If there is none, rank 0 serves a store and the others
 * go on waiting. */
static int look_back(struct master_addr *m, uint64_t before, struct now now,
                     struct dialogue_fx *fx)
{
    int rc;

    if (before > 0 && m->round - (before - 1) <= MASTER_MAX_BACK) {
        rc = ask_keys(m, MASTER_CHECKING, before - 1, now, fx);
        if (rc == 0)
            m->back = before - 1;
        return rc;
    }
    if (m->rank == 0)
        return serve(m, fx);
    return ask_keys(m, MASTER_WAITING, m->round, now, fx);
}

static int begin(struct master_addr *m, struct now now, struct dialogue_fx *fx)
{
    const bool known = m->known.host[0] != '\0';

    if (m->rank != 0 && m->told) {
        take(m, &m->told_at);
        fx->kind = DIALOGUE_DONE;
        return 0;
    }
    if (m->rank != 0 && m->share && !m->all_read && known &&
        owner_is(m, &m->members[0])) {
        fx->kind =
            DIALOGUE_DONE; /* It keeps its server; torch's does not publish again. */
        return 0;
    }
    if (m->rank != 0)
        return ask_keys(m, MASTER_WAITING, m->round, now, fx);
    if (!m->share || master_addr_moves(m) || (known && m->known.port == m->served_port))
        return serve(m, fx);
    if (known && owner_is_member(m))
        return probe(m, &m->known, fx); /* If it does not answer, we serve ourselves. */
    if (!known && m->round > 0)
        return look_back(m, m->round, now, fx);
    return serve(m, fx);
}

/* ---- answers ---- */

static int time_is_up(const struct master_addr *m, struct dialogue_fx *fx)
{
    return fail(m, fx, MUSTER_ETIMEDOUT,
                "rank 0 ('%.*s') has not published it within %" PRIu64 " s",
                (int)MIN_OF(m->members[0].addr.n, 300u),
                (const char *)m->members[0].addr.p, m->timeout_ms / 1000);
}

/* What rank 0 had published may have been lost with the store's server. */
static bool is_stranded(const struct master_addr *m, struct now now)
{
    return m->rank != 0 && m->dialogue.broke_ms != MONO_NEVER &&
           now.mono_ms - m->dialogue.broke_ms >= REJOIN_MS;
}

static int master_addr_on_waited(struct master_addr *m, const struct dialogue_event *ev,
                                 struct dialogue_fx *fx)
{
    struct master_address at;

    if (ev->status == 0) {
        if (!parse(ev->reply, &at))
            return fail(m, fx, MUSTER_ESTATE, "what the store holds is not an address");
        take(m, &at);
        fx->kind = DIALOGUE_DONE;
        return 0;
    }
    if (ev->now.mono_ms >= m->dialogue.by_ms)
        return time_is_up(m, fx);
    if (is_stranded(m, ev->now)) {
        fx->kind = DIALOGUE_REJOIN;
        return 0;
    }
    if (m->share && !m->all_read && m->round > 0 &&
        ev->now.mono_ms >= m->started_ms + PATIENT_MS)
        return look_back(m, m->round, ev->now, fx);
    return ask_keys(m, MASTER_WAITING, m->round, ev->now, fx);
}

/* If rank 0 is torch's, only its own address counts. If we are a new rank 0, we may
 * take over the address of any node in the round. */
static int on_older(struct master_addr *m, const struct dialogue_event *ev,
                    struct dialogue_fx *fx)
{
    struct master_address at;

    if (ev->status == 0 && parse(ev->reply, &at) &&
        (m->rank == 0 ? is_member_addr(m, at.host)
                      : span_eq(m->members[0].addr, span_str(at.host))))
        return probe(m, &at, fx);
    return look_back(m, m->back, ev->now, fx);
}

static int on_probed(struct master_addr *m, const struct dialogue_event *ev,
                     struct dialogue_fx *fx)
{
    const struct master_addr before = *m;
    int rc;

    if (ev->status < 0)
        return look_back(m, m->back, ev->now, fx);
    take(m, &m->found);
    if (m->rank != 0 || m->told) {
        fx->kind = DIALOGUE_DONE;
        return 0;
    }
    rc = ask_publish(m, ev->now, fx);
    if (rc < 0)
        *m = before;
    return rc;
}

static int on_served(struct master_addr *m, const struct dialogue_event *ev,
                     struct dialogue_fx *fx)
{
    const struct master_addr before = *m;
    struct master_address own;
    int rc;

    if (ev->status < 0)
        return fail(m, fx, ev->status, "%s", ev->text ? ev->text : "out of memory");
    assert(ev->number > 0 && ev->number < 65536);
    memcpy(own.host, m->addr, sizeof own.host);
    own.port = (uint16_t)ev->number;
    if (m->share)
        m->served_port = own.port;
    take(m, &own);
    if (m->told) {
        fx->kind = DIALOGUE_DONE;
        return 0;
    }
    rc = ask_publish(m, ev->now, fx);
    if (rc < 0)
        *m = before;
    return rc;
}

static int master_addr_on_answer(struct master_addr *m, const struct dialogue_event *ev,
                                 struct dialogue_fx *fx)
{
    const bool own = m->stage == MASTER_SERVING || m->stage == MASTER_PROBING;

    assert(m->dialogue.asking);
    if (!own && dialogue_is_broken(ev->status)) {
        if (is_stranded(m, ev->now))
            fx->kind = DIALOGUE_REJOIN;
        else if (ev->now.mono_ms >= m->dialogue.by_ms)
            return fail(m, fx, ev->status, "%s", ev->text);
        else
            dialogue_again(&m->dialogue, ev->now, fx);
        return 0;
    }
    if (!own && ev->status < 0 && ev->status != MUSTER_ETIMEDOUT)
        return fail(m, fx, ev->status, "%s", ev->text);
    switch (m->stage) {
    case MASTER_SERVING:
        return on_served(m, ev, fx);
    case MASTER_PUBLISHING: /* In c10d's CHECK, number 0 means that the keys exist. */
        if (ev->reply->number != 0)
            return fail(m, fx, MUSTER_ESTATE,
                        "the store does not keep the address that rank 0 set");
        fx->kind = DIALOGUE_DONE;
        return 0;
    case MASTER_WAITING:
        return master_addr_on_waited(m, ev, fx);
    case MASTER_CHECKING:
        return ev->reply->number == 0
                   ? ask_keys(m, MASTER_READING, m->back, ev->now, fx)
                   : look_back(m, m->back, ev->now, fx);
    case MASTER_READING:
        return on_older(m, ev, fx);
    case MASTER_PROBING:
        return on_probed(m, ev, fx);
    }
    return 0;
}

static int ask_again(struct master_addr *m, struct now now, struct dialogue_fx *fx)
{
    if (now.mono_ms >= m->dialogue.by_ms)
        return fail(m, fx, MUSTER_ETIMEDOUT,
                    "the store could not be reached within "
                    "%" PRIu64 " s",
                    m->timeout_ms / 1000);
    if (m->stage == MASTER_PUBLISHING)
        return ask_publish(m, now, fx);
    return ask_keys(m, m->stage, m->stage == MASTER_WAITING ? m->round : m->back, now,
                    fx);
}

int master_addr_step(struct store_dialogue *t, const struct dialogue_event *ev,
                     struct dialogue_fx *fx)
{
    struct master_addr *m = CONTAINER_OF(t, struct master_addr, dialogue);
    int rc;

    assert(m->count > 0 && m->rank >= 0);
    switch (ev->kind) {
    case DIALOGUE_BEGIN:
        assert(t->by_ms == MONO_NEVER);
        t->by_ms = ev->now.mono_ms + m->timeout_ms;
        rc = begin(m, ev->now, fx);
        if (rc < 0)
            t->by_ms = MONO_NEVER;
        else
            m->started_ms = ev->now.mono_ms;
        return rc;
    case DIALOGUE_ANSWER:
        return master_addr_on_answer(m, ev, fx);
    case DIALOGUE_TIMER:
        assert(!t->asking);
        return ask_again(m, ev->now, fx);
    }
    return 0;
}
