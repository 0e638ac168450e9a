/* wire.h - what a node and the run that it belongs to say to each other, over one
 * connection: the node's session (job/session.h) at one end, the run (run.h) at the
 * other. docs/PROTOCOL.md has every byte.
 *
 * It is an ordinary store connection: a node sends each message as the value of a
 * QUEUE_PUSH to RESERVED_RUN, and from then on the server's bytes on that connection
 * are messages too, each behind a u64 length. A store that hosts runs has that key.
 * Kinds and trailing fields that a reader does not know are skipped, so that later
 * versions can add to both. */
#ifndef JOB_CORE_WIRE_H
#define JOB_CORE_WIRE_H

#include "base/base.h"
#include "base/buf.h"
#include "muster/error.h"
#include "rendezvous/core/rank_exchange.h"

#define WIRE_VERSION 3u
#define WIRE_MAX     73728u /* bytes of one message */

/* What versions 1 and 2 were sent to; whoever still does is told so. */
#define WIRE_KEY_1 "/\x01muster/host"
#define WIRE_KEY_2 "/\x01muster/job"

/* Numbers beyond these are refused when a message is decoded, so that whoever adds some
 * of them up need not fear an overflow. */
#define WIRE_ROUND_MAX ((int64_t)1 << 53)
#define WIRE_CLOCK_MAX ((int64_t)1 << 53) /* microseconds: 285 years, either way */
#define WIRE_RANKS_MAX INT32_MAX /* of ranks, and of anything counted in them */
#define WIRE_NODE_MAX  INT32_MAX

/* Stands for the number of waiting nodes when one of them has left the receiver's
 * round. */
#define WIRE_MEMBER_WAITS INT64_MAX
/* The count of JOINED if no node of the round is torchrun's: they all read the workers'
 * address in each round, and do not remember an earlier one. */
#define WIRE_ALL_OURS (-1)

/* X(name): node to run first, then run to node. The numbers are on the wire; new kinds
 * go to the end of the list. */
#define MSG_KINDS(X)                                                                   \
    X(NONE)                                                                            \
    X(HELLO)    /* who I am, which run, what I want of it, where I was */              \
    X(JOIN)     /* I want the round after mine, and leave it; count: my n-th JOIN */   \
    X(LEAVE)    /* I hand my seat back */                                              \
    X(CLOSE)    /* the run is over for everybody */                                    \
    X(BYE)      /* I want no more of the record: my end is not a loss */               \
    X(BEAT)     /* a sign of life, answered by PING; with seq: the answer to a PING */ \
    X(PUBLISH)  /* an entry, the seq-th of mine, and my clocks */                      \
    X(OFFER)    /* an entry of the record, with its number: the answer to WANT */      \
    X(RANKS)    /* my workers of a round have ranks rank .. rank + count - 1 */        \
    X(PHASE)    /* a phase of the round took value microseconds on my node; rank: how  \
                   many more PHASEs of mine follow */                                  \
    X(REPORTED) /* my workers of the round are gone: count failed; bytes: codes */     \
    X(MOVED)    /* nodes came or went, so I stop my workers for the next round */      \
    X(ASK)      /* a question to all agents */                                         \
    X(ANSWER)   /* to the question seq */                                              \
    X(SYNC)     /* answer SYNCED once I have every entry so far */                     \
    X(WELCOME)  /* your HELLO is accepted; your number is node */                      \
    X(JOINED)   /* the round is complete: your rank, the world, who is rank 0, where   \
                   the workers find their store */                                     \
    X(GATHERED) /* how many nodes, and which, have a place in your round so far */     \
    X(REFUSED)  /* the JOIN or HELLO is over: code, text */                            \
    X(LEFT)     /* answers LEAVE */                                                    \
    X(NEWS)     /* something has happened that you did not ask for: enum wire_news */  \
    X(ENTRY)    /* an entry of the record; seq: your PUBLISH that it answers, or 0 */  \
    X(WANT)     /* offer me your entries above number value */                         \
    X(QUESTION) /* somebody's ASK: send me your ANSWER */                              \
    X(ANSWERED) /* by node, to your question seq; flags: enum msg_flag */              \
    X(PING)     /* answer BEAT with this seq, and your clocks */                       \
    X(SYNCED)                                                                          \
    X(STORE) /* node to run: as rank 0 I serve the workers' store of this round */

enum msg_kind {
#define MSG_KIND_ENUM(name) MSG_##name,
    MSG_KINDS(MSG_KIND_ENUM)
#undef MSG_KIND_ENUM
        MSG_KIND_COUNT
};

const char *msg_kind_name(enum msg_kind kind); /* "HELLO"; "?" if unknown */

enum msg_flag {
    MSG_OBSERVER = 1,   /* HELLO: I am not an agent; I only ask and listen */
    MSG_OWN_BUDGET = 2, /* RANKS: restarts are counted on each node */
    MSG_SERVES = 4,     /* HELLO: my process serves the store; my total counts */
    MSG_SEATS = 8,      /* HELLO: I ask for seats; on static and etcd nobody does */
    MSG_RECORD = 16,    /* HELLO: I share the job's record; torch's agent does not */
    MSG_LAST = 32,      /* SYNC: answer once no other agent is left; ANSWERED: this is
                           the end of the answers, and not one of them */
    MSG_MISSING = 64,   /* ANSWER, ANSWERED: the node has no answer */
    MSG_PROGRESS = 128, /* REPORTED: the attempt has made progress */
};

/* What a NEWS is about. Numbers that a reader does not know are skipped. */
enum wire_news {
    WIRE_CLOSED,  /* the run is closed; also the answer to CLOSE */
    WIRE_WAITING, /* count nodes wait for the next round, or WIRE_MEMBER_WAITS */
    WIRE_LOST,    /* a member of the running round is gone: text says which and why */
    WIRE_SPARE,   /* you are a spare, without a time limit (count 1), or not (0) */
    WIRE_EVICTED, /* the others have dropped you: text */
    WIRE_HOST,    /* the node whose process serves the store has this round and rank */
    WIRE_DIFFERS, /* you were started with other settings than the first node: text */
    WIRE_NEWS_COUNT
};

/* How ranks are ordered among our nodes; with torchrun's nodes among them it is always
 * by descriptor. */
enum wire_order { WIRE_BY_NODE, WIRE_BY_KEY, WIRE_ORDERS };

/* One struct for all kinds; a field says which kinds use it. Spans are borrowed. */
struct run_msg {
    enum msg_kind kind;
    uint32_t flags; /* enum msg_flag */
    uint32_t what;  /* NEWS: enum wire_news */
    uint64_t seq;   /* PUBLISH, ENTRY; ASK, QUESTION, ANSWER...; PING, BEAT; SYNC */
    uint64_t nonce; /* HELLO: tells a reconnect from another process of that name */
    uint64_t value; /* as the kind says; HELLO: the last entry known; WELCOME: the
                       run's last; ASK, QUESTION: milliseconds */
    uint32_t node;  /* HELLO: my number if I know one; WELCOME, ANSWERED */
    int64_t mono_us, wall_us; /* PUBLISH, BEAT, MOVED: the sender's clocks */
    int64_t pid, local_id;    /* HELLO; JOINED: of rank 0 */
    int64_t nproc;            /* HELLO */
    enum wire_order order;    /* HELLO */
    uint64_t rank_order_key;  /* HELLO, WIRE_BY_KEY: lower comes first */
    /* HELLO: how long to wait for the node after its connection broke; GATHERED: until
     * the round starts without the rest, or MONO_NEVER */
    uint64_t grace_ms;
    int64_t round; /* of the kind; HELLO, JOIN: the last one, or -1 */
    int64_t rank;  /* HELLO, JOINED, NEWS: of the node; RANKS: the first; PHASE */
    int64_t world; /* JOINED; HELLO: 0 if the node is no longer in that round */
    int64_t count; /* RANKS: how many ranks, or -1: only the seat is told; REPORTED: how
                      many failed; JOIN: the how-manieth; JOINED: how many of the world
                      are torchrun's; GATHERED: nodes; NEWS */
    int64_t total; /* HELLO: --max-restarts; RANKS: nodes in the round; REPORTED:
                      workers that were ended by us */
    int64_t seat_round, seat; /* RANKS: the round of the rendezvous, which counts them
                                 otherwise on static, and our rank in it; or -1 */
    int32_t code;             /* REFUSED: a MUSTER_E code */
    struct span run_id;       /* HELLO */
    struct span host;         /* HELLO: the machine's name; ANSWERED */
    struct span where; /* HELLO: the machine's address; STORE, JOINED: of the workers'
                          store; or empty */
    int64_t port;      /* STORE, JOINED: likewise */
    struct span addr;  /* HELLO: our name among the seats, with pid and local_id;
                          JOINED: who is rank 0; GATHERED: which nodes are missing */
    struct span settings; /* HELLO, with MSG_SEATS: as rdzv_settings_print has them */
    struct span policy;   /* HELLO: as policy_print has it; empty: none */
    struct rank_range ranks; /* JOINED: of the receiver's workers; a world of 0: the
                                agents have to agree on them */
    struct span
        name; /* HELLO: the workers' role; ASK, QUESTION: its kind; PHASE: its name */
    struct span text;  /* REFUSED, NEWS; GATHERED: names, see
                          rendezvous/core/progress.h; empty: as told before */
    struct span bytes; /* an entry; a question; an answer; exit codes */
};

/* Appends the message's bytes, without the outer length. */
int msg_encode(struct buf *out, const struct run_msg *m);

/* Reads one whole message. A kind that is not known becomes MSG_NONE, which readers
 * ignore. With MUSTER_EPROTO, err names the field that is wrong. */
int msg_decode(struct span bytes, struct run_msg *m, struct muster_error *err);

#endif
