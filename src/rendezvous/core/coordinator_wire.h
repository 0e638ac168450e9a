/* coordinator_wire.h - what a node of ours and the host of a rendezvous say to each
 * other.
 *
 * Carried over an ordinary store connection, so that nothing changes for others: a node
 * sends each message as the value of a QUEUE_PUSH to COORD_KEY, and from then on the
 * server's bytes on that connection are messages too, each behind a u64 length. Every
 * message is of bounded size; none grows with the number of nodes. */
#ifndef RENDEZVOUS_CORE_COORDINATOR_WIRE_H
#define RENDEZVOUS_CORE_COORDINATOR_WIRE_H

#include "base/base.h"
#include "base/buf.h"
#include "muster/error.h"

/* On the wire; our client puts the first slash there itself. */
#define COORD_KEY     "/\x01muster/host"
#define COORD_VERSION 1u
#define COORD_MAX     8192u /* bytes of one message */
/* The low 16 bits of the nonce of a node that reads the workers' address in each round;
 * older releases keep the first one that they get, as torchrun does. Where all of a
 * world read it, JOINED says COORD_ALL_READ instead of a number. */
#define COORD_READS    0x6d75u
#define COORD_ALL_READ (-1)
/* Instead of a number in WAITING: one of them has left the receiver's round. What older
 * releases do does not depend on the number. */
#define COORD_MEMBER_WAITS INT64_MAX

/* X(name): node to host first, then host to node. */
#define COORD_KINDS(X)                                                                 \
    X(HELLO) /* who I am, which run, my settings, and the round I am still in */       \
    X(JOIN) /* I want the next round; a member leaves its round by it; count: which */ \
    X(LEAVE) /* I hand my seat back */                                                 \
    X(CLOSE) /* the run is over for everybody */                                       \
    X(ALIVE)                                                                           \
    X(WELCOME)                                                                         \
    X(JOINED)   /* round, rank, world, and rank 0's address */                         \
    X(GATHERED) /* so many, and who, have a place in the round that you wait for */    \
    X(REFUSED)  /* the JOIN or HELLO is over: code, text */                            \
    X(LEFT)     /* answers LEAVE */                                                    \
    X(CLOSED)   /* the run is closed; also the answer to CLOSE */                      \
    X(WAITING)  /* so many nodes wait for the next round, or COORD_MEMBER_WAITS */     \
    X(LOST)     /* a member of the running round is gone: text says who and why */     \
    X(SPARE)   /* you are one (count 1), or no longer (0): a spare waits without limit \
                */                                                                     \
    X(EVICTED) /* the others have dropped you: text */

enum coord_kind {
#define COORD_KIND_ENUM(name) COORD_##name,
    COORD_KINDS(COORD_KIND_ENUM)
#undef COORD_KIND_ENUM
        COORD_KIND_COUNT
};

const char *coord_kind_name(enum coord_kind kind); /* "HELLO" */

/* How a group of our nodes is ordered; in mixed groups it is always by descriptor. */
enum coord_order { COORD_BY_NODE, COORD_BY_KEY, COORD_ORDERS };

/* One struct for all kinds; a field says which kinds use it. Spans are borrowed. */
struct coord_msg {
    enum coord_kind kind;
    struct span run_id;         /* HELLO */
    struct span addr;           /* HELLO: who I am; JOINED: who is rank 0;
                                   GATHERED: who is missing, as far as known */
    int64_t pid, local_id;      /* likewise */
    uint64_t nonce;             /* HELLO: tells a reconnect from a double */
    struct span settings;       /* HELLO: as rdzv_settings_print writes them */
    enum coord_order order;     /* HELLO */
    uint64_t rank_order_key;    /* HELLO, COORD_BY_KEY: lower comes first */
    uint64_t grace_ms;          /* HELLO: how long a broken connection may stay so;
                                   GATHERED: until the round starts without the
                                   rest, or MONO_NEVER */
    int64_t round, rank, world; /* JOINED; HELLO: the last round, or -1; world
                                   is 0 if no longer in it */
    int64_t count;              /* WAITING, GATHERED: nodes; SPARE: 1 or 0;
                                   JOINED: how many of the world are torchrun's, or
                                   COORD_ALL_READ; JOIN: the n-th of this node, so that
                                   one repeated after a reconnect is known */
    int32_t code;               /* REFUSED: a MUSTER_E code */
    struct span text;           /* REFUSED, LOST, EVICTED; GATHERED: names, see
                                   rendezvous/core/progress.h; empty: as you know */
};

/* Appends the message's bytes, without the outer length. */
int coord_encode(struct buf *out, const struct coord_msg *m);

/* Reads one whole message; MUSTER_EPROTO names the field that is wrong. */
int coord_decode(struct span bytes, struct coord_msg *m, struct muster_error *err);

#endif
