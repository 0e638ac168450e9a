/* job_wire.h - what an agent and the coordinator of its job say to each other on the
 * job channel (job/channel.h). docs/PROTOCOL.md has every byte.
 *
 * The channel has a store connection of its own: an agent sends each message as the
 * value of a QUEUE_PUSH to JOB_KEY, and from then on the server's bytes on that
 * connection are messages too, each behind a u64 length. A store that can do this has
 * the word RESERVED_CAPS_JOB among its capabilities. Kinds and trailing fields that a
 * reader does not know are skipped, so that later versions can add to both. */
#ifndef JOB_CORE_JOB_WIRE_H
#define JOB_CORE_JOB_WIRE_H

#include "base/base.h"
#include "base/buf.h"
#include "muster/error.h"

/* On the wire; our client puts the first slash there itself. */
#define JOB_KEY     "/\x01muster/job"
#define JOB_VERSION 2u
#define JOB_MAX     73728u /* bytes of one message */

/* Numbers beyond these are refused when a message is decoded, so that whoever adds some
 * of them up need not fear an overflow. */
#define JOB_ROUND_MAX ((int64_t)1 << 53)
#define JOB_CLOCK_MAX ((int64_t)1 << 53) /* microseconds: 285 years, either way */
#define JOB_RANKS_MAX INT32_MAX          /* of ranks, and of anything counted in them */
#define JOB_NODE_MAX  INT32_MAX

/* X(name): agent to coordinator first, then coordinator to agent. The numbers are on
 * the wire; new kinds go to the end of the list. */
#define JOB_KINDS(X)                                                                   \
    X(NONE)                                                                            \
    X(ATTACH)   /* who I am, which run, how much of the record I have */               \
    X(PUBLISH)  /* an entry, the seq-th of mine, and my clocks */                      \
    X(OFFER)    /* an entry of the record, with its number: the answer to WANT */      \
    X(RANKS)    /* my workers of a round have ranks rank .. rank + count - 1 */        \
    X(PHASE)    /* a phase of the round took value microseconds on my node; rank: how  \
                   many more PHASEs of mine follow */                                  \
    X(REPORTED) /* my workers of the round are gone: count failed; bytes: codes */     \
    X(ASK)      /* a question to all agents */                                         \
    X(ANSWER)   /* to the question seq */                                              \
    X(PONG)     /* to the PING seq: my clocks */                                       \
    X(SYNC)     /* answer SYNCED once I have every entry so far */                     \
    X(BYE)                                                                             \
    X(ATTACHED) /* your number is node */                                              \
    X(ENTRY)    /* an entry of the record; seq: your PUBLISH that it answers, or 0 */  \
    X(WANT)     /* offer me your entries above number value */                         \
    X(QUESTION) /* somebody's ASK: send me your ANSWER */                              \
    X(ANSWERED) /* by node, to your question seq; value 1: it has no answer */         \
    X(ANSWERS_END)                                                                     \
    X(PING)                                                                            \
    X(SYNCED)                                                                          \
    X(REFUSED) /* bytes says why */                                                    \
    X(LAST)    /* agent to coordinator: answer SYNCED once no other agent is left */   \
    X(SEAT)    /* agent to coordinator: I am the rank-th node of the round */          \
    X(HOST)    /* coordinator to agent: the SEAT of the node that I run on */          \
    X(MOVED)   /* agent to coordinator: nodes came or went, so I stop my workers of    \
                  the round for the next one */

enum job_kind {
#define JOB_KIND_ENUM(name) JOB_##name,
    JOB_KINDS(JOB_KIND_ENUM)
#undef JOB_KIND_ENUM
        JOB_KIND_COUNT
};

const char *job_kind_name(enum job_kind kind); /* "ATTACH"; "?" if unknown */

enum job_flag {
    JOB_OBSERVER = 1,   /* ATTACH: I am not an agent; I only ask and listen */
    JOB_OWN_BUDGET = 2, /* RANKS: restarts are counted on each node */
    JOB_SERVES = 4,     /* ATTACH: my process serves the store; my total counts */
};

/* One struct for all kinds; a field says which kinds use it. Spans are borrowed. */
struct job_msg {
    enum job_kind kind;
    uint64_t seq;       /* PUBLISH, ENTRY; ASK, QUESTION, ANSWER...; PING; SYNC */
    uint64_t nonce;     /* ATTACH: tells a reconnect from another process */
    uint64_t value;     /* as the kind says; ATTACH: the last entry known; ATTACHED:
                           the coordinator's last; ASK, QUESTION: milliseconds */
    uint32_t node;      /* ATTACH: my number if I know one; ATTACHED, ANSWERED */
    uint32_t flags;     /* enum job_flag */
    int64_t mono_us;    /* PUBLISH, PONG, MOVED: the sender's clocks when it was sent */
    int64_t wall_us;    /* likewise */
    int64_t pid, nproc; /* ATTACH */
    int64_t round;      /* RANKS, PHASE, REPORTED, SEAT, HOST, MOVED */
    int64_t rank;       /* RANKS: the first; PHASE, SEAT, HOST: as the kind says */
    int64_t count;      /* RANKS: how many ranks; REPORTED: how many failed */
    int64_t total;      /* ATTACH: --max-restarts; RANKS: nodes in the round;
                           REPORTED: workers that were ended by us */
    struct span run_id; /* ATTACH */
    struct span host, addr; /* ATTACH; ANSWERED: host */
    struct span name;       /* ASK, QUESTION: its kind; PHASE: its name */
    struct span bytes;      /* an entry; a question; an answer; text */
};

/* Appends the message's bytes, without the outer length. */
int job_encode(struct buf *out, const struct job_msg *m);

/* Reads one whole message. A kind that is not known becomes JOB_NONE, which readers
 * ignore. With MUSTER_EPROTO, err names the field that is wrong. */
int job_decode(struct span bytes, struct job_msg *m, struct muster_error *err);

#endif
