/* sessions.c - see sessions.h. */
#include "job/core/sessions.h"

#include <assert.h>

#include "base/list.h"
#include "base/mem.h"
#include "muster/error.h"

void sessions_init(struct sessions *t)
{
    *t = (struct sessions){ .silent_us = SESSION_SILENT_US,
                            .away_most = SESSION_AWAY_LEAST };
    map_init(&t->nodes, 0);
}

void sessions_fini(struct sessions *t)
{
    struct map_link *link;

    for (size_t i = 0; (link = map_next(&t->nodes, &i));)
        mem_free(CONTAINER_OF(link, struct run_session, link));
    map_fini(&t->nodes);
    mem_free(t->by_peer);
    sessions_init(t);
}

struct run_session *sessions_of(const struct sessions *t, uint32_t peer)
{
    return peer < t->by_peer_size ? t->by_peer[peer] : NULL;
}

struct run_session *sessions_find(const struct sessions *t, uint64_t nonce)
{
    struct map_link *link = map_get(&t->nodes, span_of(&nonce, sizeof nonce));

    return link ? CONTAINER_OF(link, struct run_session, link) : NULL;
}

struct run_session *sessions_meet(struct sessions *t, uint64_t nonce, uint32_t peer)
{
    struct run_session *s = sessions_find(t, nonce);
    struct run_session **by_peer =
        mem_grow_to(t->by_peer, &t->by_peer_size, peer, sizeof *by_peer);

    if (!by_peer)
        return NULL;
    t->by_peer = by_peer;
    if (s)
        return s;
    s = map_reserve(&t->nodes, 1) < 0 ? NULL : mem_calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->nonce = nonce;
    s->link.key = span_of(&s->nonce, sizeof s->nonce);
    s->state = SESSION_LOST; /* until it is connected */
    s->peer = SESSION_NO_PEER;
    s->grace_us = MONO_NEVER;
    s->lost_by_us = MONO_NEVER;
    map_add(&t->nodes, &s->link);
    return s;
}

bool run_session_is_open(const struct run_session *s)
{
    return s->peer != SESSION_NO_PEER;
}

static void unlist(struct sessions *t, struct run_session *s)
{
    if (s->state == SESSION_HERE && !s->serves)
        LIST_REMOVE(&t->heard, s, prev, next);
    if (s->state == SESSION_AWAY) {
        LIST_REMOVE(&t->away, s, prev, next);
        t->away_count--;
    }
    s->state = SESSION_LOST;
    s->lost_by_us = MONO_NEVER;
}

void run_session_release(struct sessions *t, struct run_session *s)
{
    if (run_session_is_open(s) || s->seat || s->said)
        return;
    run_session_settle(t, s);
    unlist(t, s);
    map_remove(&t->nodes, &s->link);
    mem_free(s);
}

void run_session_heard(struct sessions *t, struct run_session *s, uint64_t now_us)
{
    s->heard_us = now_us;
    if (s->state != SESSION_HERE || s->serves)
        return;
    LIST_REMOVE(&t->heard, s, prev, next);
    LIST_APPEND(&t->heard, s, prev, next);
}

void run_session_open(struct sessions *t, struct run_session *s, uint32_t peer,
                      uint64_t now_us)
{
    assert(peer < t->by_peer_size && !t->by_peer[peer] && !s->lost);
    if (run_session_is_open(s))
        t->by_peer[s->peer] = NULL;
    t->by_peer[peer] = s;
    s->peer = peer;
    unlist(t, s);
    s->state = SESSION_HERE;
    s->broke = s->crowded = false;
    s->heard_us = now_us;
    if (!s->serves)
        LIST_APPEND(&t->heard, s, prev, next);
}

void run_session_set_serves(struct sessions *t, struct run_session *s, bool serves)
{
    if (s->state == SESSION_HERE && serves && !s->serves)
        LIST_REMOVE(&t->heard, s, prev, next);
    else if (s->state == SESSION_HERE && !serves && s->serves)
        LIST_APPEND(&t->heard, s, prev, next);
    s->serves = serves;
}

/* A node that lives is back after a pause of 20 ms and four round trips. If it has not
 * named a time, we wait for twice as many of its slowest recent round trips, and a
 * quarter of a second more. */
static uint64_t grace_us(const struct run_session *s)
{
    return s->grace_us != MONO_NEVER
               ? s->grace_us
               : MIN_OF(SESSION_GRACE_US + 8 * s->slow_us, SESSION_MOST_US);
}

static void lose(struct sessions *t, struct run_session *s)
{
    unlist(t, s);
    assert(!s->lost);
    s->lost = true;
    LIST_APPEND(&t->losses, s, prev, next);
}

void run_session_close(struct sessions *t, struct run_session *s, uint64_t now_us,
                       uint64_t hold_us)
{
    struct run_session *before = t->away.last;

    if (!run_session_is_open(s))
        return;
    t->by_peer[s->peer] = NULL;
    s->peer = SESSION_NO_PEER;
    if (s->state == SESSION_LOST)
        return;
    unlist(t, s);
    s->state = SESSION_AWAY;
    s->broke = true;
    s->lost_by_us = MAX_OF(now_us + grace_us(s), hold_us);
    /* Most nodes of a run have the same grace, so the search mostly ends where it
     * begins. */
    while (before && before->lost_by_us > s->lost_by_us)
        before = before->prev;
    LIST_INSERT(&t->away, before, s, prev, next);
    if (++t->away_count <= t->away_most)
        return;
    t->away.first->crowded = true;
    lose(t, t->away.first);
}

void sessions_judge(struct sessions *t, uint64_t now_us)
{
    while (t->heard.first && now_us - t->heard.first->heard_us >= t->silent_us)
        lose(t, t->heard.first);
    while (t->away.first && t->away.first->lost_by_us <= now_us)
        lose(t, t->away.first);
}

uint64_t sessions_deadline(const struct sessions *t)
{
    uint64_t by = t->away.first ? t->away.first->lost_by_us : MONO_NEVER;

    if (t->losses.first)
        return 0;
    if (t->heard.first && t->silent_us < MONO_NEVER - t->heard.first->heard_us)
        by = MIN_OF(by, t->heard.first->heard_us + t->silent_us);
    return by;
}

struct run_session *sessions_lost(const struct sessions *t)
{
    return t->losses.first;
}

void run_session_settle(struct sessions *t, struct run_session *s)
{
    if (!s->lost)
        return;
    s->lost = false;
    LIST_REMOVE(&t->losses, s, prev, next);
}
