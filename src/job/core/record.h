/* record.h - the record of the job's life: numbered entries that say what happened,
 * where and when. The report, the event log, `muster status` and the page are all made
 * from it.
 *
 * Every agent keeps one. The coordinator of the job (job/core/hub.h) numbers the
 * entries and passes them on, so that all agents have the same. Pure and bounded: at
 * most RECORD_ENTRIES are kept; when more come, one of the kind of which there are most
 * is dropped, but not one of its first or last, and the totals still count it.
 *
 * Nothing in it grows with the number of nodes times the number of rounds: what each
 * node sends at the start of a round (its ranks, its phase times) is gathered by the
 * coordinator into one entry a round. */
#ifndef JOB_CORE_RECORD_H
#define JOB_CORE_RECORD_H

#include "base/base.h"
#include "base/buf.h"
#include "muster/error.h"

#define RECORD_ENTRIES  1024u
#define RECORD_TEXT_MAX 1024u  /* bytes of a short text */
#define RECORD_BODY_MAX 12288u /* bytes of a long one */

/* Decoding refuses entries with larger numbers, so that sums of them cannot overflow.
 */
#define RECORD_NUMBER_MAX ((int64_t)1 << 53) /* of a round, of anything counted */
#define RECORD_CLOCK_MAX  ((int64_t)1 << 60) /* microseconds */

/* X(name): in order of importance, the least important first. The numbers are on the
 * wire: new kinds go to the end, and readers skip those that they do not know. */
#define RECORD_KINDS(X)                                                                \
    X(NONE)                                                                            \
    X(PHASES)  /* how long the phases of a round took; body: record_phases_next */     \
    X(NODES)   /* nodes that have come; body: record_nodes_next */                     \
    X(ROUND)   /* a round began: count nodes, total ranks; node coordinates the job    \
                  (0: no agent does); body: record_ranks_next */                       \
    X(ENDED)   /* a round is over: cause; body: exit codes, record_codes_next */       \
    X(LEFT)    /* a node said goodbye: node, host, text */                             \
    X(LOST)    /* a node vanished without a goodbye: text says why; if total is not 0, \
                  it was the code-th node of round total - 1 of the rendezvous */      \
    X(FAILED)  /* a worker failed; at most RECORD_FAILED_MAX are kept for a round */   \
    X(ENDING)  /* the round must end: count of total restarts are used; code 0: there  \
                  will be another round; 1: the job has failed for good; 2: one of the \
                  two, which is known once the round is judged */                      \
    X(RESTART) /* why there is another round: fields as of FAILED; count of total */   \
    X(VERDICT) /* the end of the job: cause, fields as of FAILED if a worker did it,   \
                  as of LOST if a node; body: what the others then waited for */       \
    X(NOTE)    /* text for people; cause says what it is about */                      \
    X(NOTICE)  /* node is to go in wait_us, or, if count is 1, all are; text: who says \
                */

enum record_kind {
#define RECORD_KIND_ENUM(name) RECORD_##name,
    RECORD_KINDS(RECORD_KIND_ENUM)
#undef RECORD_KIND_ENUM
        RECORD_KIND_COUNT
};

const char *record_kind_name(enum record_kind kind); /* "FAILED"; "?" if unknown */

/* X(name, words): why a worker, a node or the job ended. Their numbers are on the wire,
 * too. */
#define RECORD_CAUSES(X)                                                               \
    X(NONE, "none")                                                                    \
    X(EXCEPTION, "exception") /* Python's, with its text */                            \
    X(EXIT, "exit code") /* exited with a code, and its output does not say why */     \
    X(SIGNAL, "signal")  /* killed by a signal that somebody sent */                   \
    X(CRASH, "crash")    /* SIGSEGV and its kind */                                    \
    X(MEMORY, "out of memory") /* killed by the kernel */                              \
    X(START, "bad start")      /* could not be executed at all */                      \
    X(NODE_LOST, "lost node")                                                          \
    X(STOPPED, "stopped") /* the agent was told to stop */                             \
    X(SUCCEEDED, "succeeded")                                                          \
    X(MEMBERSHIP, "membership") /* nodes came or went, so there is a new round */      \
    X(RENDEZVOUS, "rendezvous") /* no round came about, or its store failed */         \
    X(HANG, "hang")                                                                    \
    X(CUT_OFF, "cut off") /* this node, from whoever may have gone on without it */    \
    X(POLICY, "policy")   /* of a NOTE: nodes have different restart policies */       \
    X(NOTICE, "notice")   /* a node, or all of the job, was taken away */

enum record_cause {
#define RECORD_CAUSE_ENUM(name, words) CAUSE_##name,
    RECORD_CAUSES(RECORD_CAUSE_ENUM)
#undef RECORD_CAUSE_ENUM
        RECORD_CAUSE_COUNT
};

const char *record_cause_name(enum record_cause cause); /* "out of memory" */

#define RECORD_FAILED_MAX 8u

/* One entry. Which fields mean something depends on the kind; the others are 0 or
 * empty. Texts are clean: UTF-8 without control characters but newlines in `body`. */
struct record_entry {
    uint64_t number; /* from 1; given by the coordinator; 0: not yet */
    enum record_kind kind;
    enum record_cause cause;
    int64_t at_us;     /* when, by the coordinator's wall clock, since 1970 */
    int64_t unsure_us; /* by how much at_us may be wrong, either way */
    uint32_t node;     /* of the node that it is about; 0: the coordinator's own */
    int64_t round;     /* -1: before the first */
    int64_t rank, local_rank, pid; /* of a worker; -1: none */
    int64_t code;                  /* exit code as Python has it, or as the kind says */
    int64_t count, total;          /* as the kind says */
    struct span host;              /* of the worker or the node */
    struct span text;              /* one line: the exception, why a node was lost */
    struct span place; /* where in the user's own code: File "train.py", line 41 */
    struct span path;  /* the worker's log file */
    struct span body;  /* the last words of its stderr, or as the kind says */
    /* RESTART and VERDICT, with a policy (policy/core/policy.h); FAILED of a node that
     * decides for itself: */
    uint32_t reason;  /* enum policy_reason */
    int64_t left;     /* restarts that are left after it; -1: no limit */
    int64_t wait_us;  /* before the next attempt */
    struct span rule; /* that fitted, or the budget: "exit:2:stop", "5/1h" */
};

/* Appends the entry's bytes. MUSTER_EFULL: a text is too long (see record_trim). */
int record_entry_encode(struct buf *out, const struct record_entry *e);

/* Reads one entry; spans point into bytes. Trailing bytes are skipped. A kind or cause
 * that is not known keeps its number. With MUSTER_EPROTO, err names the field. */
int record_entry_decode(struct span bytes, struct record_entry *e,
                        struct muster_error *err);

/* Cuts texts that are too long, between two characters. */
void record_trim(struct record_entry *e);

/* ---- the record ---- */

struct record_slot;

struct record {
    struct record_slot *slots; /* owned; in order of number */
    size_t size;               /* how many fit */
    size_t count;
    uint64_t last; /* the highest number seen */
    /* Counted over the whole job, not only over the entries that are kept. */
    int64_t restarts, rounds, failures, lost, joined;
    int64_t began_us; /* at_us of the first entry; 0: none yet */
};

void record_init(struct record *r);
void record_fini(struct record *r); /* NULL and zeroed are fine */

/* Adds a copy. An entry whose number is not above `last` is ignored. 0, or
 * MUSTER_ENOMEM with nothing changed. */
int record_add(struct record *r, const struct record_entry *e);

/* Likewise, but an older entry is put in its place among the others, unless it is there
 * already. For a coordinator that continues the record of another one. */
int record_insert(struct record *r, const struct record_entry *e);

/* For a step whose entries are sent when it is over: record_stage adds an entry, whose
 * number is above all others, and drops none to make room. record_prune then drops what
 * is too much, but no entry numbered above last, which is r->last before the step. */
int record_stage(struct record *r, const struct record_entry *e);
void record_prune(struct record *r, uint64_t last);

/* The i-th of r->count, oldest first; borrowed until the next record_add. */
struct record_entry record_at(const struct record *r, size_t i);

/* Likewise, as encoded, and its number. */
struct span record_bytes(const struct record *r, size_t i, uint64_t *number);

/* The newest of a kind, and of a round unless that is -1; false if there is none. */
bool record_find(const struct record *r, enum record_kind kind, int64_t round,
                 struct record_entry *out);

/* ---- what is in some bodies ---- */

/* NODES: one node a line, "number host addr pid nproc offset_us unsure_us" with
 * tabs between. Takes a line off the front of *body; false: none is left. */
struct record_node {
    uint32_t number;
    struct span host, addr;
    int64_t pid, nproc;
    int64_t offset_us; /* its wall clock ahead of the coordinator's */
    int64_t unsure_us;
};

bool record_nodes_next(struct span *body, struct record_node *out);
int record_nodes_print(struct buf *out, const struct record_node *n);

/* ROUND: "node first_rank count" a line, in rank order. */
struct record_ranks {
    uint32_t node;
    int64_t first, count;
};

bool record_ranks_next(struct span *body, struct record_ranks *out);
int record_ranks_print(struct buf *out, const struct record_ranks *r);

/* ENDED, and a node's report: "first_rank count code" a line, equal neighbours as one.
 */
struct record_codes {
    int64_t first, count, code;
};

/* False at the end, and at a line that is not one of them. */
bool record_codes_next(struct span *body, struct record_codes *out);

/* Prints lines so that equal neighbours become one. Call record_codes_add for each line
 * in rank order, with the same *run, zeroed at first; it holds the line that may still
 * grow. record_codes_end prints what is left in it. */
void record_codes_add(struct buf *out, struct record_codes *run,
                      struct record_codes more);
void record_codes_end(struct buf *out, struct record_codes *run);

/* PHASES: "name min_us median_us max_us slowest_node" a line. */
struct record_phase {
    struct span name;
    int64_t min_us, median_us, max_us;
    uint32_t slowest;
};

bool record_phases_next(struct span *body, struct record_phase *out);
int record_phases_print(struct buf *out, const struct record_phase *p);

/* What the newest NODES entry with this node says of it; false if none does. */
bool record_host_of(const struct record *r, uint32_t node, struct record_node *out);

/* Whether a node was lost, or has said goodbye. */
bool record_node_ended(const struct record *r, uint32_t node);

/* The reason that a node gave when it left, borrowed until the record grows; empty if
 * it has not said goodbye. */
struct span record_farewell(const struct record *r, uint32_t node);

#endif
