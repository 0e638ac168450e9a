/* rdzv_state.h - the rendezvous state in etcd: its keys, how it is read and written,
 * and the events that the backend makes for the rendezvous. It is the pure part of
 * etcd/rdzv_backend.c; the simulator uses it, too. */
#ifndef ETCD_CORE_RDZV_STATE_H
#define ETCD_CORE_RDZV_STATE_H

#include "etcd/core/kv_operation.h"
#include "rendezvous/core/cas_node.h"

/* v3: etcd deletes what is left of a run this long after its last node has gone. */
#define ETCD_RUN_TTL_S  300u
#define ETCD_REQUEST_MS 10000u /* then the failure is reported to the core */

struct etcd_names {
    char *key, *dir; /* owned: of the state; of the run's store */
    char *nodes;     /* owned; v3: directory of the nodes' presence keys */
    char
        *change_key; /* owned; v3: written with each change of the state, for watches */
};

/* prefix is for v3; v2 has torch's keys. 0 or MUSTER_ENOMEM; call etcd_names_fini in
 * either case. */
int etcd_names_init(struct etcd_names *n, enum etcd_api api, const char *prefix,
                    const char *run_id);
void etcd_names_fini(struct etcd_names *n);

/* How long one try of a request may take. It is so short that a node can try a third
 * member of the cluster, if two hang, long before the other nodes take it for dead. */
uint64_t etcd_patience_ms(const struct rdzv_settings *s);

/* Makes the compare-and-set of the state. A quiet one does not write v3's change_key.
 */
struct etcd_put etcd_state_put(const struct etcd_names *n, struct span value,
                               bool has_token, struct span token, bool quiet,
                               int64_t lease);

#define ETCD_TOKEN_SIZE 24

/* Makes a STATE event, or with `write` a WROTE event. The spans of ev point into held
 * and token. */
void etcd_state_event(struct rdzv_event *ev, bool write, bool won,
                      const struct etcd_held *held, char token[ETCD_TOKEN_SIZE]);

/* Whether another request may succeed: there was no answer, or no leader just then. */
bool etcd_is_transient(int code);

/* Makes a FAILED event; the caller sets the text. */
void etcd_state_failed(struct rdzv_event *ev, int code);

/* ---- What the rendezvous has seen, and whether there is more ---- */

struct etcd_seen {
    uint64_t revision; /* of the whole store, when the state was last reported */
    uint64_t newest;   /* of the last change of the state that we know of */
    bool resync;       /* changes may have been missed */
};

bool etcd_is_stale(const struct etcd_seen *s);
void etcd_seen_notified(struct etcd_seen *s, const struct etcd_held *held);

/* Takes events of v3's stream about change_key, or NULL if some were missed. The stream
 * also reports our own writes, often before their answer comes. So while a request is
 * under way, its answer decides whether there is something new. */
void etcd_seen_events(struct etcd_seen *s, const char *change_key,
                      const struct etcd3_reply *events);

#endif
