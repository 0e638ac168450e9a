/* agent_core.h - what an agent does next: the life of the workers of one node, decided.
 *
 * The way of a node that nothing befalls:
 *
 *     join -> assign ranks -> start -> run -> drain -> barrier -> leave
 *
 * From run it may turn back to join by way of stop, kill and drain;
 * docs/ARCHITECTURE.md has the whole diagram, which a test draws from the table in
 * agent_core.c.
 *
 * Who tells what. The guard tells of the workers: STARTED, EXIT, LEFTOVERS (the workers
 * are gone, what they started is not), EMPTY (not a process is left). The rendezvous
 * tells of the other nodes: NODE_WAITS, NODE_LOST, NEXT_ROUND, BARRIER_SHORT, EVICTED,
 * CUT_OFF. The job's coordinator tells what comes of failures: PEER_FAILED, RESTART,
 * VERDICT; JUDGE_GONE and JUDGE_BACK tell of itself. People send SIGNAL.
 *
 * Rules, and why:
 *  - A failure stops all workers of the job, since they wait for each other. Who has
 *    failed first is the coordinator's to say, and so is a restart when restarts are
 *    counted for the whole job; where nobody says, a node counts for itself.
 *  - A change of the membership (a node waits, is lost, or left for the next round) is
 * a new round and not a restart: it is not counted.
 *  - No worker of an old world may run beside one of a new world. A node that learns
 *    that the others have gone on without it (EVICTED), or cannot know (CUT_OFF), kills
 *    its workers at once.
 *  - Workers that have ended well have done their work, whatever happens then to other
 *    nodes: their node waits at the exit barrier, but not for those who will not come.
 *  - While workers are being started nothing is stopped, because their pids come first:
 *    the reason is kept (pending) until STARTED.
 *  - A signal is passed on to the workers; a second one ends their patience sooner, and
 *    the third kills (of SIGINT the second: somebody sits at the terminal).
 *
 * Pure: the driver (agent/agent.c) feeds events and performs effects, in order. Workers
 * are local ranks 0 .. nproc - 1. All times are mono_ms. */
#ifndef AGENT_CORE_AGENT_CORE_H
#define AGENT_CORE_AGENT_CORE_H

#include "base/base.h"
#include "muster/error.h"

/* Workers that have not gone by then are named. */
#define AGENT_TELL_MS 2000u
/* torchrun's interval: ranks that fail with the first end by themselves. */
#define AGENT_PATIENCE_MS 100u
/* After SIGKILL; only a wait in the kernel outlasts it. */
#define AGENT_REAP_MS 30000u
/* What workers left behind gets so long to go. */
#define AGENT_LEFTOVER_MS 5000u
/* At the barrier a lost member may still have counted. */
#define AGENT_BARRIER_LOST_MS 1000u
/* Somebody waits: the others may take so long to agree on ranks that nobody will
 * use. */
#define AGENT_ASSIGN_WAITS_MS 3000u
/* The coordinator has 2 s, and the way is long. */
#define AGENT_JUDGE_MS 4000u
/* A goodbye that nobody takes is cut short, sooner if it may be the store that
 * failed. */
#define AGENT_CLOSE_MS       5000u
#define AGENT_CLOSE_FATAL_MS 500u

#define AGENT_PHASES(X)                                                                \
    X(NEW)                                                                             \
    X(JOINING)                                                                         \
    X(ASSIGNING)                                                                       \
    X(STARTING)                                                                        \
    X(RUNNING)                                                                         \
    X(STOPPING) /* told to go; the deadline brings SIGKILL */                          \
    X(KILLING)                                                                         \
    X(DRAINING) /* all gone; what they wrote is being passed on */                     \
    X(JUDGING)  /* until the coordinator says what comes of a failure */               \
    X(BARRIER)                                                                         \
    X(LEAVING)                                                                         \
    X(DONE)

enum agent_core_phase {
#define AGENT_PHASE_ENUM(name) AGENT_##name,
    AGENT_PHASES(AGENT_PHASE_ENUM)
#undef AGENT_PHASE_ENUM
};

/* Why the workers are ended, or have ended; the graver further down. */
enum agent_core_why {
    WHY_NONE,
    WHY_SUCCESS,
    WHY_MEMBERSHIP, /* somebody waits or is lost: a new round, not counted */
    WHY_PEER,       /* a worker of another node failed: all of the job stops with it */
    WHY_FAILURE,
    WHY_STUCK,  /* uninterruptible sleep */
    WHY_FATAL,  /* the rendezvous, the guard or a start failed */
    WHY_SIGNAL, /* to the agent */
    WHY_NOTICE, /* this node, or all of the job, is to go by a deadline */
};

#define AGENT_EVENTS(X)                                                                \
    X(BEGIN)                                                                           \
    X(JOINED)                                                                          \
    X(ASSIGNED)      /* code 1: the coordinator counts restarts; worker: so far */     \
    X(STARTED)       /* every worker of this node */                                   \
    X(FATAL)         /* whatever the driver could not do; it keeps the reason */       \
    X(CUT_OFF)       /* nobody can say whether this node still counts; code 1: it may  \
                        wait for the next round */                                     \
    X(EXIT)          /* worker: local rank; code */                                    \
    X(LEFTOVERS)     /* the workers are gone, what they started is not */              \
    X(EMPTY)         /* not a process is left */                                       \
    X(DRAINED)       /* all that they wrote has been passed on; code: what a node that \
                        decides for itself has decided, enum agent_core_choice */      \
    X(NODE_WAITS)    /* for the next round */                                          \
    X(NODE_LOST)     /* a member of this round */                                      \
    X(EVICTED)       /* the others have gone on without this node */                   \
    X(NEXT_ROUND)    /* some of the others have left this round for the next */        \
    X(BARRIER_SHORT) /* whoever has not come to the exit barrier will not */           \
    X(STUCK)         /* a worker, in uninterruptible sleep */                          \
    X(HANG)          /* the job stands still; code 1: no restart is wanted */          \
    X(SIGNAL)        /* to the agent; code: its number */                              \
    X(NOTICE)        /* another node is to go; worker: milliseconds that are left,     \
                        code: the signal for the workers, or 0 */                      \
    X(NOTICE_OURS)   /* the same of this node */                                       \
    X(BARRIER_DONE)                                                                    \
    X(LEFT)                                                                            \
    X(TIMEOUT)                                                                         \
    /* The coordinator, of the current round: */                                       \
    X(PEER_FAILED) /* a worker failed somewhere: stop */                               \
    X(RESTART)     /* worker: restarts so far; code 1: that is the count of a node     \
                      that counts for itself, too */                                   \
    X(VERDICT)     /* the job has failed for good */                                   \
    X(JUDGE_GONE)  /* nobody judges this round */                                      \
    X(JUDGE_BACK)                                                                      \
    X(ENTERED) /* never fed: a phase, by the transition before */

enum agent_core_event_kind {
#define AGENT_EVENT_ENUM(name) AGENT_EV_##name,
    AGENT_EVENTS(AGENT_EVENT_ENUM)
#undef AGENT_EVENT_ENUM
};

enum agent_core_choice {
    AGENT_COUNTED_RESTART,
    AGENT_NO_RESTART,
    AGENT_FREE_RESTART,
    AGENT_JOB_ENDS, /* after a notice: without those who go there are too few */
};

struct agent_core_event {
    enum agent_core_event_kind kind;
    struct now now;
    int64_t worker;
    int code; /* EXIT: as Python has it, negative for a signal */
};

enum agent_core_fx_kind {
    AGENT_FX_JOIN,
    AGENT_FX_CANCEL_JOIN,
    AGENT_FX_ASSIGN,
    AGENT_FX_START,     /* attempt: the restart count */
    AGENT_FX_SIGNAL,    /* worker, sig */
    AGENT_FX_LEFTOVERS, /* sig: to what exited workers left */
    AGENT_FX_KILL_ALL,  /* code 1: their time is up, so look where they are first */
    AGENT_FX_DRAIN,
    AGENT_FX_JUDGE, /* tell the coordinator what failed here */
    AGENT_FX_BARRIER,
    AGENT_FX_LEAVE,  /* close: also close the run id */
    AGENT_FX_FINISH, /* why, code: the exit code */
    /* News for people: the driver words them. */
    AGENT_FX_LOG_SIGNAL,     /* sig: received */
    AGENT_FX_LOG_WAITING,    /* for the workers that are still alive */
    AGENT_FX_LOG_KILL,       /* worker, sig: did not go by sig */
    AGENT_FX_LOG_ABANDONED,  /* worker: did not even go by SIGKILL */
    AGENT_FX_LOG_FAILED,     /* the attempt failed; final: for good */
    AGENT_FX_LOG_SUCCEEDED,  /* every worker exited 0 */
    AGENT_FX_LOG_TERMINATED, /* an unhealthy group has been ended */
    AGENT_FX_LOG_BARRIER,    /* sig: came during the barrier */
    AGENT_FX_LOG_NO_BARRIER, /* it was given up */
};

struct agent_core_fx {
    enum agent_core_fx_kind kind;
    int64_t worker;
    int sig, code;
    int64_t attempt;
    bool close, final;
    enum agent_core_why why;
};

struct agent_core_fx_list {
    struct agent_core_fx *items; /* owned */
    size_t count, size;
};

struct agent_core_settings {
    int64_t nproc, max_restarts;
    uint64_t shutdown_ms; /* that workers get to end after a signal to the agent, */
    uint64_t restart_ms;  /* and when their attempt is over */
};

struct agent_core_worker {
    bool alive, stuck;
    int code; /* once it has exited */
};

struct agent_core {
    struct agent_core_settings set;
    enum agent_core_phase phase;
    enum agent_core_why why;
    int64_t remaining; /* restarts; of the job if job_budget */
    bool job_budget;   /* restarts are the coordinator's to grant */
    enum { UNDECIDED, RESTARTS, FAILED_FOR_GOOD } outcome; /* of the current round */
    struct agent_core_worker *workers;                     /* owned */
    int64_t alive;
    bool empty;                  /* not a process is left of this attempt */
    bool leftovers_asked;        /* they have been told to go */
    enum agent_core_why pending; /* why to stop as soon as the workers have started */
    bool fenced;                 /* likewise: and then they get no time to end */
    bool barrier_short;          /* somebody will not come to the exit barrier */
    bool judge_gone;             /* nobody judges this round, */
    bool evicted;                /* or those who do are in a round without this node */
    int stop_sig;                /* what the workers were told last */
    uint64_t notice_ms;          /* until when they may take after a notice; 0: none */
    int notice_sig;              /* by which they hear of it; 0: in another way */
    bool all_go;                 /* nobody goes on after the notice */
    int signal;                  /* that ended us, or 0 */
    int signals;                 /* how many came, */
    int interrupts;              /* and how many of them were SIGINT */
    uint64_t due_ms;             /* MONO_NEVER if nothing is awaited by time */
    uint64_t ask_ms;  /* STOPPING: when to tell them; MONO_NEVER: they know */
    uint64_t tell_ms; /* STOPPING: when to say who has not gone */
};

int agent_core_init(struct agent_core *g, const struct agent_core_settings *set,
                    struct muster_error *err);
void agent_core_fini(struct agent_core *g); /* NULL and zeroed are fine */

/* Adds effects to fx. 0, or MUSTER_ENOMEM: then the core can only be finished. */
int agent_core_step(struct agent_core *g, const struct agent_core_event *ev,
                    struct agent_core_fx_list *fx);

/* Makes room for what one step may add to fx. A driver that does so at the start, and
 * keeps the memory, need not fear MUSTER_ENOMEM later. */
int agent_core_fx_reserve(const struct agent_core *g, struct agent_core_fx_list *fx);

static inline uint64_t agent_core_deadline(const struct agent_core *g)
{
    return g->phase == AGENT_STOPPING ? MIN_OF(g->due_ms, MIN_OF(g->ask_ms, g->tell_ms))
                                      : g->due_ms;
}

/* TORCHELASTIC_RESTART_COUNT of the current attempt. */
static inline int64_t agent_core_attempt(const struct agent_core *g)
{
    return g->set.max_restarts - g->remaining;
}

void agent_core_fx_fini(struct agent_core_fx_list *fx);

/* --- the table ------------------------------------------------------------------- */

typedef bool (*agent_condition)(const struct agent_core *g,
                                const struct agent_core_event *ev);
typedef void (*agent_action)(struct agent_core *g, const struct agent_core_event *ev,
                             struct agent_core_fx_list *fx);

/* One row: in one of these phases, at one of these events, if the condition holds
 * (NULL: always), the reason becomes why (unless WHY_NONE), the actions are taken, and
 * the phase becomes next (unless AGENT_NEW: it stays). The first row that fits
 * counts. */
struct agent_transition {
    uint32_t phases, events; /* one bit each, by number */
    agent_condition when;
    enum agent_core_why why;
    enum agent_core_phase next;
    agent_action actions[3];
};

/* For the test that draws the diagram. */
const struct agent_transition *agent_core_table(size_t *rows);

#endif
