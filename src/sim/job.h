/* job.h - whole jobs on simulated machines: the real agents, rendezvous and stores,
 * workers that are made up, and bad luck. See os.h for what they run on. */
#ifndef SIM_JOB_H
#define SIM_JOB_H

#include "sim/os.h"

#define JOB_NODES    8 /* machines, and one more for an etcd or a store */
#define JOB_NPROC    4
#define JOB_MEETINGS 512

struct job;

/* How a worker takes SIGTERM. */
enum job_manners { JOB_POLITE, JOB_SLOW, JOB_DEAF };

struct job_node {
    struct job *job;
    size_t index;
    struct os_machine *machine;
    struct os_process *agent; /* its last life; NULL: not started yet */
    unsigned lives;           /* how often an agent was started here */
    bool ended;               /* the agent of this life has ended */
    int exit_code;            /* of the agent that ended */
    int why;                  /* enum agent_core_why */
    int error;                /* MUSTER_E*, if it ended by one */
    char text[200];           /* and its first line */
    bool given_up;            /* nobody starts it again */
    unsigned starts_due;      /* it is about to be started */
    bool killed;              /* by a fault: SIGKILL or the power */
    bool signalled;           /* by a fault: SIGTERM */
    bool starved;             /* an allocation of its agent has failed */
    unsigned long fail_alloc; /* which one; 0: none */
    uint64_t start_t, end_t;
    uint64_t idle_t; /* when its last worker ended */
    unsigned workers_started;
    const struct job_meeting *met; /* the last world that its workers were part of */
    struct guard *guard;           /* of the agent that runs; NULL: none */
};

struct job_settings {
    char backend[16];
    bool
        plain; /* c10d on a store that has keys alone, as torch's: on a machine apart */
    int64_t min_nodes, max_nodes, nproc, max_restarts;
    size_t nodes;      /* that are started */
    size_t host;       /* the node that the endpoint names */
    uint64_t work_us;  /* what has to be computed in rounds that are whole */
    uint64_t grace_ms; /* loss_grace_ms; 0: the default */
    uint64_t join_s;   /* join_timeout */
    uint64_t last_call_s;
    enum job_manners manners;
    bool workers_fail_with_peers; /* instead of hanging */
    uint64_t import_us;           /* until a worker meets the others, at most */
};

/* Workers that found each other: one world of the job. */
struct job_meeting {
    int64_t world;
    char master[64];
    size_t met;      /* workers that have passed its barrier */
    size_t lost;     /* of those, that have ended */
    uint64_t full_t; /* since when it is whole; OS_NEVER: it is not */
    bool over;
    uint8_t ranks[JOB_NODES * JOB_NPROC];
    struct os_process *members[JOB_NODES * JOB_NPROC];
};

struct job {
    struct job_settings set;
    struct job_node nodes[JOB_NODES];
    struct job_meeting *meetings[JOB_MEETINGS];
    size_t meeting_count;
    const struct job_meeting *last; /* the one that has done the work */
    uint64_t done_us;               /* of work_us */
    uint64_t done_t;                /* when all of it was done; OS_NEVER: not yet */
    size_t etcd_members;            /* of the cluster; 0: there is none */
    bool long_outage;      /* somebody was away for longer than a node may be silent */
    uint64_t last_fault_t; /* when the last bad luck is over */
    unsigned resets, cuts, kills, stops, jumps, signals, failures, starved;
    unsigned moments;         /* faults that are left for when something happens, */
    bool only_resets;         /* of this kind */
    bool cluster_alone;       /* nothing happens but to the cluster of etcd */
    unsigned strays;          /* workers of a lost node that came to a later world */
    bool host_lost;           /* the store went with its process, at least once */
    unsigned worker_failures; /* workers that failed by themselves */
    unsigned started;         /* workers, in all */
};

extern struct job *the_job;

/* Something has happened, a message or a worker's step: a fault that waits for such a
 * moment may come now. */
void job_moment(void);

/* One job; false: a promise was broken, and os.fail says which. */
bool job_play(uint64_t seed, const char *backend, const char *faults, bool loud);
extern uint64_t job_node_us; /* simulated time of all nodes so far */

/* ---- job_worker.c ---- */

struct job_worker {
    struct job_node *node;
    char **env; /* in memory of the job */
    uint32_t id;
    struct os_process *process;
    struct job_meeting *meeting; /* NULL: not met yet */
    bool failing;                /* its peers are gone */
};

int job_worker_main(void *worker);
void job_worker_ended(struct job_worker *w);

/* ---- job_http.c: an etcd cluster behind net/http.h ---- */

void job_etcd_start(struct job *j, const char *backend);
void job_etcd_stop(void);
bool job_etcd_fault(uint64_t for_us); /* of a member; false: there is no cluster */
bool job_etcd_flaps(void);            /* it has lost one leader after the other */
void job_etcd_cut(const struct job_node *n, uint64_t until_t);
void job_etcd_reset(const struct job_node *n);
void job_etcd_life(const struct job_node *n, bool alive);

/* ---- job_guard.c: the guard of an agent, cut off at guard.h ---- */

/* The agent has ended, however it did: its workers end too. */
void job_agent_gone(struct job_node *n);

#endif
