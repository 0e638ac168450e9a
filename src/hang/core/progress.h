/* progress.h - whether a job goes on: what each node knows of its own ranks, and what
 * follows from what all nodes know. Pure.
 *
 * A job hangs when nothing was written for TIME, and one rank at least has waited in a
 * collective all that time, without having been scheduled once, while every other rank
 * waits as well or was never seen in a collective: whoever is in a loop or just slow
 * keeps the others waiting. Or when no rank at all has been scheduled for TIME. CPU
 * time alone says nothing: waits may spin. "In a collective" is any call of torch here:
 * the stacks of Python do not show that a backward waits for other ranks. */
#ifndef HANG_CORE_PROGRESS_H
#define HANG_CORE_PROGRESS_H

#include "stacks/core/findings.h"

/* --- one node --------------------------------------------------------------------- */

/* One rank as it was seen now. */
struct hang_seen {
    int64_t pid;
    uint64_t waits;  /* how often the main thread has gone to sleep */
    uint64_t cpu_us; /* that it has used */
    uint64_t bytes;  /* that it has written, wherever to */
};

struct hang_rank {
    struct hang_seen last;
    uint64_t calm_ms;   /* since when it has not gone to sleep: it may spin */
    uint64_t still_ms;  /* since when it has not run at all */
    uint64_t held_from; /* last.waits when it was last seen untouched, if it is held */
    bool held;
    /* Of the looks at stacks since hang_node_begin: */
    unsigned looks;
    uint64_t chain;             /* of the first look */
    bool same, waited, waiting; /* chain; ever, and each time inside of torch */
};

struct hang_node {
    struct hang_rank *ranks; /* owned, by local rank */
    size_t count;
    uint64_t quiet_ms; /* since when nothing was written */
};

int hang_node_init(struct hang_node *n, size_t ranks, uint64_t now_ms);
void hang_node_fini(struct hang_node *n);

/* The workers were started anew. */
void hang_node_reset(struct hang_node *n, uint64_t now_ms);

/* Somebody wrote something, age_ms ago. */
void hang_node_wrote(struct hang_node *n, uint64_t now_ms, uint64_t age_ms);

/* A rank was looked at; pid 0: it does not run. */
void hang_node_saw(struct hang_node *n, size_t local_rank, const struct hang_seen *s,
                   uint64_t now_ms);

/* The readings of stacks that hold the workers, or have them answer. */
struct hang_holds {
    uint64_t changes, running; /* as of the last look */
    uint64_t times;            /* how often workers were held since that began */
    uint64_t until_ms;
    bool held;
};

/* How many readings run now, and how many have begun or ended so far. Whether workers
 * are held, or may not have gone on yet. */
bool hang_holds_saw(struct hang_holds *h, uint64_t changes, uint64_t running,
                    uint64_t now_ms);

/* The same after the rank was held, or had to answer, so many times since it was last
 * seen untouched: that it has gone to sleep again after each says nothing. */
void hang_node_held(struct hang_node *n, size_t local_rank, const struct hang_seen *s,
                    uint64_t times, uint64_t now_ms);

/* Looks at stacks begin, and what one of them showed. */
void hang_node_begin(struct hang_node *n);
void hang_node_stacks(struct hang_node *n, const struct stack_sample *sample);

/* What a node tells. Each rank that runs is one of the four. */
struct hang_pulse {
    uint64_t quiet_ms; /* for how long nothing was written */
    uint64_t calm_ms;  /* for how long the calmest rank has been calm */
    uint64_t ranks, looks;
    uint64_t waiting; /* in a collective all that time */
    uint64_t still;   /* somewhere else, but not scheduled all that time */
    uint64_t busy;    /* scheduled, and never seen in a collective */
    uint64_t moving;  /* all others */
};

/* Whether a rank that waits uses its processor: only its stacks tell if it goes on. */
bool hang_node_spins(const struct hang_node *n, uint64_t now_ms, uint64_t time_ms);

/* As of now, for a hang of time_ms. */
void hang_node_pulse(const struct hang_node *n, uint64_t now_ms, uint64_t time_ms,
                     struct hang_pulse *out);

/* Both together. */
void hang_pulse_add(struct hang_pulse *to, const struct hang_pulse *from);

/* {"quiet_ms": 10, ...}. Reading: MUSTER_EPROTO. */
int hang_pulse_print(struct buf *out, const struct hang_pulse *p);
int hang_pulse_parse(struct hang_pulse *p, struct span text);

/* --- the job ---------------------------------------------------------------------- */

/* What is to be asked of all nodes next. */
struct hang_question {
    uint64_t time_ms;
    bool begin, stacks; /* begin to look at stacks; look at them */
    bool enough; /* stacks were seen often enough: now only those of ranks that spin */
};

int hang_question_print(struct buf *out, const struct hang_question *q);
int hang_question_parse(struct hang_question *q, struct span text);

enum hang_stage {
    HANG_WATCH,    /* all is well, as far as is known */
    HANG_LOOK,     /* a rank has been calm for half the time: look at stacks */
    HANG_SUSPECT,  /* the stacks for a report are read before TIME is up */
    HANG_REPORTED, /* the hang was reported, and nothing has moved since */
};

struct hang_judge {
    uint64_t time_ms;
    enum hang_stage stage;
    bool begun;      /* HANG_LOOK: the nodes were told to begin */
    bool enough;     /* HANG_LOOK: for the next question, which comes when TIME is up */
    uint64_t by_ms;  /* HANG_LOOK: when to give up for now */
    uint64_t due_ms; /* when to ask next */
};

enum hang_finding {
    HANG_NOTHING,
    HANG_SUSPECTED, /* read the stacks that will be reported, then ask again */
    HANG_FOUND,     /* nothing has moved since: report them */
    HANG_OVER,      /* after it was found: something moves again */
};

void hang_judge_init(struct hang_judge *j, uint64_t time_ms, uint64_t now_ms);

/* The question for now; then the answers of all nodes, added up. complete: every node
 * has answered; otherwise nothing is concluded. */
struct hang_question hang_judge_ask(struct hang_judge *j);
enum hang_finding hang_judge_hear(struct hang_judge *j, uint64_t now_ms,
                                  const struct hang_pulse *all, bool complete);

/* After HANG_SUSPECTED or HANG_FOUND: the stacks could not be read, or the report could
 * not be made. The hang will be found again soon. */
void hang_judge_not_reported(struct hang_judge *j, uint64_t now_ms);

#endif
