/* findings.h - what a sample means: equal stacks told once, and which rank the others
 * most likely wait for. Pure.
 *
 * A name is only told where the stacks show it: whoever is stopped, in the kernel or
 * somewhere else while the others wait in a collective. Otherwise the cause is unknown,
 * and the reason says why. */
#ifndef STACKS_CORE_FINDINGS_H
#define STACKS_CORE_FINDINGS_H

#include "stacks/core/sample.h"

enum stack_kind {
    STACK_ELSEWHERE, /* in no collective */
    STACK_WAITS,     /* for other ranks: in a collective, or for the store */
    STACK_STOPPED,   /* by a signal or a debugger */
    STACK_KERNEL,    /* uninterruptible */
    STACK_GONE,      /* has exited */
    STACK_PARTLY,    /* some frames could not be read: perhaps it waits */
    STACK_UNREAD,    /* its stack could not be read */
    STACK_KINDS
};

struct stack_group {
    enum stack_kind kind;
    const char *place;   /* "load_batch (data.py:31) <- main (train.py:117)" */
    const char *brief;   /* "load_batch (data.py:31)", "all_reduce (train.py:88)" */
    const char *native;  /* innermost frames below Python's; "" if unknown */
    const char *helpers; /* of its other processes, those that matter; "" if none */
    const struct stack_rank **ranks; /* ascending; the sample's */
    size_t count;
    bool whole;   /* false: what was not read of these keeps them from being compared */
    bool differs; /* from what most do */
    bool suspect; /* the others most likely wait for these */
};

struct stack_findings {
    struct arena arena;         /* all of the below */
    struct stack_group *groups; /* suspects first, then the rarer ones */
    size_t count;
    size_t ranks;    /* of the sample */
    size_t suspects; /* how many ranks the others most likely wait for; 0: unknown */
    const char *unknown; /* why nobody is named; "" if somebody is */
    const char *places;  /* where all wait, if all do and not in one place; else "" */
    bool mismatch;       /* they have called different collectives */
};

/* The sample must be sorted, and outlive the findings. 0 or MUSTER_ENOMEM, with nothing
 * left to free. */
int stack_findings_make(struct stack_findings *f, const struct stack_sample *s);
void stack_findings_fini(struct stack_findings *f);

/* "0-4, 7" of the group's ranks. 0, MUSTER_ENOMEM or MUSTER_EFULL. */
int stack_ranges(struct buf *out, const struct stack_group *g);

/* As `muster stacks` prints them: a line for each group, and below it what else is
 * known of it. */
int stack_findings_print(struct buf *out, const struct stack_findings *f,
                         const struct stack_sample *s);

/* As a report of a hang: "7 ranks (0-4, 6, 7) wait in all_reduce (train.py:88)", each
 * on a line of its own behind the indent, those who wait first. */
int stack_findings_report(struct buf *out, const struct stack_findings *f,
                          const char *indent);

/* "rank 5 is the likely cause", "ranks 5 and 6 (node2) are ...", or "the likely cause
 * is unknown: ...". */
int stack_findings_verdict(struct buf *out, const struct stack_findings *f);

/* One rank in full: every process, every thread, every frame. */
int stack_rank_print(struct buf *out, const struct stack_rank *r);

/* The findings as members of a JSON object, without its braces. */
int stack_findings_json(struct buf *out, const struct stack_findings *f);

/* How one rank is to be seen if it is looked at alone, for tests and the progress of a
 * hang. */
enum stack_kind stack_kind_of(const struct stack_rank *r);

/* The thread that holds the interpreter's lock while the main thread waits for it, or
 * NULL. */
const struct stack_thread *stack_gil_holder(const struct stack_process *p);

/* Leaves one frame of a DataLoader's process that waits for work: there may be hundreds
 * of them, and the answer of a node is limited. */
void stack_shorten_idle(struct stack_process *p);

/* Whether the innermost Python frame is torch's. */
bool stack_in_torch(const struct stack_rank *r);

/* The chain of functions of the main thread as one number: equal for equal chains. With
 * lines if asked for. 0: unknown. */
uint64_t stack_chain_hash(const struct stack_rank *r, bool lines);

#endif
