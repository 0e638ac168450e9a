/* agent_core.h - what an agent does next: the life of the workers of one node, decided.
 *
 *     join -> assign ranks -> start -> run -> (stop -> join ...) -> barrier -> leave
 *
 * Pure: the driver (agent/agent.c) feeds events and performs effects, in order.
 * Workers are local ranks 0 .. nproc - 1. All times are mono_ms. */
#ifndef AGENT_CORE_AGENT_CORE_H
#define AGENT_CORE_AGENT_CORE_H

#include "base/base.h"
#include "muster/error.h"

#define AGENT_TELL_MS 2000u /* workers that have not gone by then are named */
#define AGENT_PATIENCE_MS                                                              \
    100u /* torchrun's interval: ranks that fail with the first end by themselves */
#define AGENT_REAP_MS     30000u /* after SIGKILL; only a kernel wait outlasts it */
#define AGENT_LEFTOVER_MS 5000u  /* what workers left behind gets so long to go */
#define AGENT_BARRIER_LOST_MS                                                          \
    1000u /* barrier: a lost member may still have counted                             \
           */
#define AGENT_ASSIGN_CHANGED_MS                                                        \
    3000u /* somebody waits: so long may the others take to agree on ranks that nobody \
             will use */
#define AGENT_JUDGE_MS       4000u /* the coordinator has 2 s, and the way is long */
#define AGENT_CLOSE_MS       5000u /* a goodbye that nobody takes is cut short, */
#define AGENT_CLOSE_FATAL_MS 500u  /* sooner if it may be the store that failed us */

#define AGENT_PHASES(X)                                                                \
    X(AGENT_NEW)                                                                       \
    X(AGENT_JOINING)                                                                   \
    X(AGENT_ASSIGNING)                                                                 \
    X(AGENT_STARTING)                                                                  \
    X(AGENT_RUNNING)                                                                   \
    X(AGENT_STOPPING) /* told to go; the deadline brings SIGKILL */                    \
    X(AGENT_KILLING)                                                                   \
    X(AGENT_DRAINING) /* all gone; what they wrote is being passed on */               \
    X(AGENT_JUDGING)  /* until the coordinator says what comes of a failure */         \
    X(AGENT_BARRIER)                                                                   \
    X(AGENT_LEAVING)                                                                   \
    X(AGENT_DONE)

enum agent_core_phase {
#define AGENT_PHASE_ENUM(name) name,
    AGENT_PHASES(AGENT_PHASE_ENUM)
#undef AGENT_PHASE_ENUM
};

/* Why the workers are ended, or have ended. The first reason stands unless a graver one
 * (further down) comes. */
enum agent_core_why {
    WHY_NONE,
    WHY_SUCCESS,
    WHY_MEMBERSHIP, /* somebody waits or is lost: a new round, not counted */
    WHY_PEER,       /* a worker of another node failed: all of the job stops with it */
    WHY_FAILURE,
    WHY_STUCK,  /* uninterruptible sleep */
    WHY_FATAL,  /* the rendezvous, the guard or a start failed */
    WHY_SIGNAL, /* to the agent */
};

enum agent_core_event_kind {
    AGENT_EV_BEGIN,
    AGENT_EV_JOINED,
    AGENT_EV_ASSIGNED, /* code 1: the coordinator counts restarts; worker: so far */
    AGENT_EV_STARTED,  /* every worker of this node */
    AGENT_EV_FATAL,    /* whatever the driver could not do; it keeps the reason */
    AGENT_EV_CUT_OFF,  /* likewise: nobody can say whether this node still counts, so
                          its workers are killed; code 1: wait for the next round */
    AGENT_EV_EXIT,     /* worker: local rank; code */
    AGENT_EV_LEFTOVERS,
    AGENT_EV_EMPTY,
    AGENT_EV_DRAINED,
    AGENT_EV_CHANGED, /* somebody waits for the next round, or a member is lost */
    AGENT_EV_LOST,
    AGENT_EV_EVICTED,  /* the others have gone on without this node: likewise */
    AGENT_EV_MOVED_ON, /* some of the others have left this round for the next */
    AGENT_EV_DESERTED, /* whoever has not come to the exit barrier will not */
    AGENT_EV_STUCK,
    AGENT_EV_HANG,   /* the job stands still; code 1: no restart is wanted */
    AGENT_EV_SIGNAL, /* code: its number */
    AGENT_EV_BARRIER_DONE,
    AGENT_EV_LEFT,
    AGENT_EV_TIMEOUT,
    /* What the coordinator of the job says of the current round: */
    AGENT_EV_ENDING,  /* a worker failed somewhere: stop */
    AGENT_EV_RESTART, /* go on with another round; worker: restarts so far; code 1: that
                         is the count of a node that counts for itself, too */
    AGENT_EV_VERDICT, /* the job has failed for good */
    AGENT_EV_UNJUDGED, /* it is gone: nobody judges this round; code 1: it is back */
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
    int64_t remaining; /* restarts; of the job if it is judged */
    bool judged;       /* restarts are the coordinator's to grant */
    enum { OPEN, RESTARTS, FAILED_FOR_GOOD } decision; /* on the current round */
    struct agent_core_worker *workers;                 /* owned */
    int64_t alive;
    bool empty;           /* not a process is left of this attempt */
    bool leftovers_asked; /* they have been told to go */
    bool peer_failed;     /* while our workers were being started */
    bool changed;         /* the membership, while nothing could be done about it */
    bool lost;            /* a member, while what our workers left was being ended, */
    bool deserted;        /* or all that have not come to the exit barrier */
    bool unjudged;        /* the coordinator is gone */
    bool evicted;         /* and so are the others: to a round without this node */
    int stop_sig;         /* what the workers were told last */
    int signal;           /* that ended us, or 0 */
    int signals;          /* how many came, */
    int interrupts;       /* and how many of them were SIGINT */
    uint64_t due_ms;      /* MONO_NEVER if nothing is awaited by time */
    uint64_t ask_ms;      /* STOPPING: when to tell them; MONO_NEVER: they know */
    uint64_t tell_ms;     /* STOPPING: when to say who has not gone */
    bool fenced;          /* our workers may not run on, though they start only now */
};

int agent_core_init(struct agent_core *g, const struct agent_core_settings *set,
                    struct muster_error *err);
void agent_core_fini(struct agent_core *g); /* NULL and zeroed are fine */

/* Adds effects to fx. 0, or MUSTER_ENOMEM with nothing changed. */
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

#endif
