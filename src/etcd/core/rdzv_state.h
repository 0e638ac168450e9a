/* rdzv_state.h - the rendezvous state in etcd: its keys, how it is read and written,
 * and what the backend tells the rendezvous. The part of etcd/rdzv_backend.c that does
 * no I/O, for that driver and for the simulator. */
#ifndef ETCD_CORE_RDZV_STATE_H
#define ETCD_CORE_RDZV_STATE_H

#include "etcd/core/kv_operation.h"
#include "rendezvous/core/cas_node.h"

/* v3: what is left of a run goes so long after its last node. */
#define ETCD_RUN_TTL_S  300u
#define ETCD_REQUEST_MS 10000u /* then the core hears of it, and may ask again */

struct etcd_names {
    char *key, *dir; /* owned: of the state; of the run's store */
    char *nodes;     /* owned: v3: where the nodes show themselves */
    char
        *change_key; /* owned; v3: written with each change of the state, for watches */
};

/* prefix is v3's; v2's keys are torch's. 0 or MUSTER_ENOMEM; finish in either case. */
int etcd_names_init(struct etcd_names *n, enum etcd_api api, const char *prefix,
                    const char *run_id);
void etcd_names_fini(struct etcd_names *n);

/* How long one try of a request may take: a node whose member of the cluster hangs, and
 * the next one too, has beaten elsewhere long before the others find it dead. */
uint64_t etcd_patience_ms(const struct rdzv_settings *s);

/* The compare-and-set of the state. A quiet one leaves v3's change_key alone. */
struct etcd_put etcd_state_put(const struct etcd_names *n, struct span value,
                               bool has_token, struct span token, bool quiet,
                               int64_t lease);

#define ETCD_TOKEN_SIZE 24

/* STATE or WROTE (`write`): the spans of ev point into held and token. */
void etcd_state_event(struct rdzv_event *ev, bool write, bool won,
                      const struct etcd_held *held, char token[ETCD_TOKEN_SIZE]);

/* Whether it is worth asking again: nobody answered, or etcd was busy with itself. */
bool etcd_is_transient(int code);

/* FAILED; the caller sets the text. */
void etcd_state_failed(struct rdzv_event *ev, int code);

/* ---- What the rendezvous has seen, and whether there is more ---- */

struct etcd_seen {
    uint64_t revision; /* of the whole store, when the state was last told */
    uint64_t newest;   /* of the last change of the state that we heard of */
    bool resync;       /* changes may have been missed */
};

bool etcd_is_stale(const struct etcd_seen *s);
void etcd_seen_notified(struct etcd_seen *s, const struct etcd_held *held);

/* v3's stream: events of the change_key, or NULL if some were missed. Our own writes
 * are told too, often before their answer: while a request is under way, its answer
 * decides what is new. */
void etcd_seen_events(struct etcd_seen *s, const char *change_key,
                      const struct etcd3_reply *events);

#endif
