/* rdzv_state.c - see rdzv_state.h. */
#include "etcd/core/rdzv_state.h"

#include <stdio.h>

#include "base/mem.h"
#include "etcd/core/retry.h"

#define V2_STATE_DIR "/torch/elastic/rendezvous/"
#define V2_STORE_DIR "/torch/elastic/store/"
#define V2_TTL_S     7200u

int etcd_names_init(struct etcd_names *n, enum etcd_api api, const char *prefix,
                    const char *run_id)
{
    struct buf id;
    int rc;

    *n = (struct etcd_names){ .key = NULL };
    if (api == ETCD_V2) {
        n->key = mem_printf(V2_STATE_DIR "%s", run_id);
        n->dir = mem_strdup(V2_STORE_DIR);
        return n->key && n->dir ? 0 : MUSTER_ENOMEM;
    }
    /* A run id with a slash must not lie within another run's keys. */
    buf_init(&id, SIZE_MAX);
    rc = etcd_escape(&id, span_str(run_id), false);
    if (rc == 0)
        rc = buf_u8(&id, '\0');
    if (rc == 0) {
        const char *name = (const char *)buf_data(&id);

        n->key = mem_printf("%s/%s/state", prefix, name);
        n->dir = mem_printf("%s/%s/store/", prefix, name);
        n->change_key = mem_printf("%s/%s/bell", prefix, name);
        n->nodes = mem_printf("%s/%s/nodes/", prefix, name);
    }
    buf_fini(&id);
    return n->key && n->dir && n->nodes && n->change_key ? 0 : MUSTER_ENOMEM;
}

void etcd_names_fini(struct etcd_names *n)
{
    mem_free(n->key);
    mem_free(n->dir);
    mem_free(n->nodes);
    mem_free(n->change_key);
    *n = (struct etcd_names){ .key = NULL };
}

uint64_t etcd_patience_ms(const struct rdzv_settings *s)
{
    return MIN_OF(MAX_OF(rdzv_dead_after_ms(s) / 6, 500u), ETCD_ATTEMPT_MS);
}

/* A token that is not a revision of etcd's becomes one that cannot occur. */
static uint64_t token_number(struct span token)
{
    uint64_t n = 0;

    for (size_t i = 0; i < token.n; i++) {
        const uint8_t digit = (uint8_t)(token.p[i] - '0');

        if (digit > 9 || n > (UINT64_MAX - digit) / 10)
            return UINT64_MAX;
        n = n * 10 + digit;
    }
    return n > 0 ? n : UINT64_MAX;
}

struct etcd_put etcd_state_put(const struct etcd_names *n, struct span value,
                               bool has_token, struct span token, bool quiet,
                               int64_t lease)
{
    return (struct etcd_put){
        .path = span_str(n->key),
        .value = value,
        .cond = has_token ? ETCD_IF_TOKEN : ETCD_IF_ABSENT,
        .token = has_token ? token_number(token) : 0,
        .ttl_s = V2_TTL_S,
        .lease = lease,
        .change_key = n->change_key && !quiet ? span_str(n->change_key)
                                              : (struct span){ NULL, 0 },
        .unique = true, /* Each state has its writer's keep-alive time, to the µs. */
    };
}

void etcd_state_event(struct rdzv_event *ev, bool write, bool won,
                      const struct etcd_held *held, char token[ETCD_TOKEN_SIZE])
{
    const int n =
        snprintf(token, ETCD_TOKEN_SIZE, "%llu", (unsigned long long)held->token);

    *ev = (struct rdzv_event){ .kind = write ? RDZV_EV_WROTE : RDZV_EV_STATE,
                               .present = held->present,
                               .value = held->value,
                               .token = span_of(token, (size_t)n),
                               .won = won };
}

bool etcd_is_transient(int code)
{
    switch (code) {
    case MUSTER_ECONN:
    case MUSTER_ETIMEDOUT:
    case MUSTER_EREFUSED:
    case MUSTER_EUNREACH:
    case MUSTER_ERESOLVE:
    case MUSTER_EHANGUP:
    case MUSTER_ENOENT: /* Our lease has run out, and we are asking for another. */
        return true;
    }
    return false;
}

void etcd_state_failed(struct rdzv_event *ev, int code)
{
    *ev = (struct rdzv_event){ .kind = RDZV_EV_FAILED,
                               .code = code,
                               .again = etcd_is_transient(code) };
    if (ev->again && code != MUSTER_ETIMEDOUT)
        ev->code = MUSTER_ECONN;
}

bool etcd_is_stale(const struct etcd_seen *s)
{
    return s->resync || s->newest > s->revision;
}

void etcd_seen_notified(struct etcd_seen *s, const struct etcd_held *held)
{
    if (held->revision < s->revision)
        s->newest = 0; /* The cluster was restored from a backup: forget what we saw. */
    s->revision = held->revision;
    s->resync = false;
}

void etcd_seen_events(struct etcd_seen *s, const char *change_key,
                      const struct etcd3_reply *events)
{
    if (!events) {
        s->resync = true;
        s->newest = 0;
    }
    for (size_t i = 0; events && i < events->event_count; i++) {
        const struct etcd3_kv *kv = &events->events[i].kv;

        if (span_eq(kv->key, span_str(change_key)))
            s->newest = MAX_OF(s->newest, (uint64_t)kv->mod_revision);
    }
}
