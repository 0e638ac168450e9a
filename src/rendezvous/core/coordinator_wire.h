/* coordinator_wire.h - the messages between a node of ours and the coordinator at the
 * host.
 *
 * They travel over an ordinary store connection, so that nothing changes for other
 * clients: a node sends each message as the value of a QUEUE_PUSH to COORD_KEY, and
 * from then on the server's bytes on that connection are messages too, each after a u64
 * length. Every message has a bounded size; none grows with the number of nodes. */
#ifndef RENDEZVOUS_CORE_COORDINATOR_WIRE_H
#define RENDEZVOUS_CORE_COORDINATOR_WIRE_H

#include "base/base.h"
#include "base/buf.h"
#include "muster/error.h"

/* As it is on the wire; our client adds the first slash itself. */
#define COORD_KEY     "/\x01muster/host"
#define COORD_VERSION 1u
#define COORD_MAX     8192u /* bytes of one message */
/* The low 16 bits of a node's nonce say that it reads the workers' address in each
 * round. Older releases keep the first address that they get, as torchrun does. If all
 * nodes of a world read it, JOINED has COORD_ALL_READ instead of a number. */
#define COORD_READS    0x6d75u
#define COORD_ALL_READ (-1)
/* Stands for the number in WAITING when a waiting node has left the receiver's round.
 * What older releases do about WAITING does not depend on the number. */
#define COORD_MEMBER_WAITS INT64_MAX

/* X(name): node to host first, then host to node. */
#define COORD_KINDS(X)                                                                 \
    X(HELLO) /* who I am, which run, my settings, and the round I am still in */       \
    X(JOIN)  /* I want the next round and leave mine; count: my n-th JOIN */           \
    X(LEAVE) /* I hand my seat back */                                                 \
    X(CLOSE) /* the run is over for everybody */                                       \
    X(ALIVE)                                                                           \
    X(WELCOME)                                                                         \
    X(JOINED)   /* round, rank, world, and rank 0's address */                         \
    X(GATHERED) /* how many nodes, and which, have a place in your round so far */     \
    X(REFUSED)  /* the JOIN or HELLO is over: code, text */                            \
    X(LEFT)     /* answers LEAVE */                                                    \
    X(CLOSED)   /* the run is closed; also the answer to CLOSE */                      \
    X(WAITING)  /* how many nodes wait for the next round, or COORD_MEMBER_WAITS */    \
    X(LOST)     /* a member of the running round is gone: text says which and why */   \
    X(SPARE)    /* you are a spare, without a time limit (count 1), or not (0) */      \
    X(EVICTED)  /* the others have dropped you: text */

enum coord_kind {
#define COORD_KIND_ENUM(name) COORD_##name,
    COORD_KINDS(COORD_KIND_ENUM)
#undef COORD_KIND_ENUM
        COORD_KIND_COUNT
};

const char *coord_kind_name(enum coord_kind kind); /* "HELLO" */

/* How ranks are ordered among our nodes; with torchrun's nodes among them it is always
 * by descriptor. */
enum coord_order { COORD_BY_NODE, COORD_BY_KEY, COORD_ORDERS };

/* One struct for all kinds; a field says which kinds use it. Spans are borrowed. */
struct coord_msg {
    enum coord_kind kind;
    struct span run_id; /* HELLO */
    struct span addr;   /* HELLO: who I am; JOINED: who is rank 0; GATHERED: which nodes
                           are missing, as far as known */
    int64_t pid, local_id; /* likewise */
    /* HELLO: tells a reconnect from another process with the same name */
    uint64_t nonce;
    struct span settings;    /* HELLO: as rdzv_settings_print writes them */
    enum coord_order order;  /* HELLO */
    uint64_t rank_order_key; /* HELLO, COORD_BY_KEY: lower comes first */
    /* HELLO: how long to wait for the node after its connection broke; GATHERED: until
     * the round starts without the rest, or MONO_NEVER */
    uint64_t grace_ms;
    int64_t round, rank, world; /* JOINED; HELLO: the last round, or -1; world is 0 if
                                   the node is no longer in it */
    int64_t count; /* WAITING, GATHERED: nodes; SPARE: 1 or 0; JOINED: how many of the
                      world are torchrun's, or COORD_ALL_READ; JOIN: how many JOINs this
                      node has sent, so that a repeated one is recognised */
    int32_t code;  /* REFUSED: a MUSTER_E code */
    struct span text; /* REFUSED, LOST, EVICTED; GATHERED: names, see
                         rendezvous/core/progress.h; empty: as you were told before */
};

/* Appends the message's bytes, without the outer length. */
int coord_encode(struct buf *out, const struct coord_msg *m);

/* Reads one whole message; MUSTER_EPROTO names the field that is wrong. */
int coord_decode(struct span bytes, struct coord_msg *m, struct muster_error *err);

#endif
