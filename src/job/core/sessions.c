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
        mem_free(CONTAINER_OF(link, struct session, link));
    map_fini(&t->nodes);
    mem_free(t->by_peer);
    sessions_init(t);
}

struct session *sessions_of(const struct sessions *t, enum session_line line,
                            uint32_t peer)
{
    const struct session_at *at = peer < t->by_peer_size ? &t->by_peer[peer] : NULL;

    return at && at->line == line ? at->session : NULL;
}

struct session *sessions_find(const struct sessions *t, uint64_t nonce)
{
    struct map_link *link = map_get(&t->nodes, span_of(&nonce, sizeof nonce));

    return link ? CONTAINER_OF(link, struct session, link) : NULL;
}

struct session *sessions_meet(struct sessions *t, uint64_t nonce, uint32_t peer)
{
    struct session *s = sessions_find(t, nonce);
    struct session_at *by_peer =
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
    s->state = SESSION_LOST; /* until a line is open */
    s->peer[LINE_SEATS] = s->peer[LINE_RECORD] = SESSION_NO_PEER;
    s->grace_us = MONO_NEVER;
    s->lost_by_us = MONO_NEVER;
    map_add(&t->nodes, &s->link);
    return s;
}

bool session_is_open(const struct session *s, enum session_line line)
{
    return s->peer[line] != SESSION_NO_PEER;
}

static void unlist(struct sessions *t, struct session *s)
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

void session_release(struct sessions *t, struct session *s)
{
    if (session_is_open(s, LINE_SEATS) || session_is_open(s, LINE_RECORD) ||
        s->part[LINE_SEATS] || s->part[LINE_RECORD])
        return;
    unlist(t, s);
    for (int part = 0; part < SESSION_LINES; part++)
        session_settle(t, s, (enum session_line)part);
    map_remove(&t->nodes, &s->link);
    mem_free(s);
}

void session_heard(struct sessions *t, struct session *s, uint64_t now_us)
{
    s->heard_us = now_us;
    if (s->state != SESSION_HERE || s->serves)
        return;
    LIST_REMOVE(&t->heard, s, prev, next);
    LIST_APPEND(&t->heard, s, prev, next);
}

void session_open(struct sessions *t, struct session *s, enum session_line line,
                  uint32_t peer, uint64_t now_us)
{
    assert(peer < t->by_peer_size && !t->by_peer[peer].session);
    if (session_is_open(s, line))
        t->by_peer[s->peer[line]].session = NULL;
    t->by_peer[peer] = (struct session_at){ s, line };
    s->peer[line] = peer;
    unlist(t, s);
    s->state = SESSION_HERE;
    s->broke = s->crowded = false;
    s->heard_us = now_us;
    if (!s->serves)
        LIST_APPEND(&t->heard, s, prev, next);
}

void session_set_serves(struct sessions *t, struct session *s, bool serves)
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
static uint64_t grace_us(const struct session *s)
{
    return s->grace_us != MONO_NEVER
               ? s->grace_us
               : MIN_OF(SESSION_GRACE_US + 8 * s->slow_us, SESSION_MOST_US);
}

static void lose(struct sessions *t, struct session *s)
{
    unlist(t, s);
    for (int part = 0; part < SESSION_LINES; part++) {
        if (!s->part[part] || s->owed[part])
            continue;
        s->owed[part] = true;
        LIST_APPEND(&t->owed[part], s, owed_prev[part], owed_next[part]);
    }
}

void session_close(struct sessions *t, struct session *s, enum session_line line,
                   uint64_t now_us, uint64_t hold_us)
{
    struct session *before = t->away.last;

    if (!session_is_open(s, line))
        return;
    t->by_peer[s->peer[line]].session = NULL;
    s->peer[line] = SESSION_NO_PEER;
    if (session_is_open(s, LINE_SEATS) || session_is_open(s, LINE_RECORD) ||
        s->state == SESSION_LOST)
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

uint64_t sessions_deadline(const struct sessions *t, enum session_line part)
{
    uint64_t by = t->away.first ? t->away.first->lost_by_us : MONO_NEVER;

    if (t->owed[part].first)
        return 0;
    if (t->heard.first && t->silent_us < MONO_NEVER - t->heard.first->heard_us)
        by = MIN_OF(by, t->heard.first->heard_us + t->silent_us);
    return by;
}

struct session *sessions_owed(const struct sessions *t, enum session_line part)
{
    return t->owed[part].first;
}

void session_settle(struct sessions *t, struct session *s, enum session_line part)
{
    if (!s->owed[part])
        return;
    s->owed[part] = false;
    LIST_REMOVE(&t->owed[part], s, owed_prev[part], owed_next[part]);
}
