/* job.h - whole jobs on simulated machines: the real agents, rendezvous and stores,
 * with simulated workers and faults. See os.h for what they run on. */
#ifndef SIM_JOB_H
#define SIM_JOB_H

#include "sim/os.h"

#define JOB_NODES    8 /* at most; a store may have one more machine */
#define JOB_NPROC    4 /* workers of a node, at most */
#define JOB_MEETINGS 512
#define JOB_FAILURES 1024
#define JOB_ENTRIES  1024

struct job;

/* How a worker reacts to SIGTERM: it ends at once, later, or not at all. */
enum job_manners { JOB_POLITE, JOB_SLOW, JOB_DEAF };

struct job_node {
    struct job *job;
    size_t index;
    struct os_machine *machine;
    struct os_process *agent; /* the last one; NULL: none was started yet */
    unsigned lives;           /* how often an agent was started here */
    bool ended;               /* that agent has ended */
    int exit_code;            /* of that agent */
    int why;                  /* enum agent_core_why */
    int error;                /* MUSTER_E*, if it ended with one */
    char text[200];           /* the first line of that error */
    bool given_up;            /* nobody starts it again */
    unsigned starts_due;      /* how often it is still to be started */
    bool killed;              /* by a fault: SIGKILL, or its machine lost power */
    bool signalled;           /* by a fault: SIGTERM */
    unsigned long fail_alloc; /* which allocation of its agent fails; 0: none */
    uint64_t start_t, end_t;
    uint64_t idle_t; /* when its last worker ended */
    unsigned workers_started;
    const struct job_meeting *met; /* the last world that its workers were in */
    struct guard *guard;           /* of the agent that runs; NULL: none */
    struct channel *channel;       /* likewise */
    bool concludes;                /* it adds an entry for itself alone */
    bool blames_worker;            /* in the verdict that it has */
    uint64_t entry;                /* number of the last entry that it has got */
    int64_t round;                 /* of its workers */
    const char *words[JOB_NPROC];  /* the last words of its workers; NULL: none */
};

/* A worker that has failed by itself. */
struct job_failure {
    int pid;
    size_t node;
    int64_t rank, round;
    int code; /* as the record has it */
    uint64_t t;
    int64_t unsure_us; /* of t, as the record says */
    bool echo;         /* because it had lost another worker, and it says so */
    bool met;  /* it had found the others, so that all nodes had begun the round */
    bool told; /* after its agent had told it to end */
};

/* The entries that agents have got so far. */
struct job_record {
    uint64_t hashes[JOB_ENTRIES]; /* of the entry with that number; 0: none */
    uint64_t last;                /* the highest number */
    int coordinator;              /* the process that made the last entry; 0: none */
    bool moved;                   /* another one had made entries before */
    int64_t restarts;             /* that have been counted */
    uint64_t verdict_t;           /* when the verdict came; 0: not yet */
    int64_t verdict_round;
};

struct job_settings {
    char backend[16];
    bool plain; /* c10d on a store without a coordinator, like torch's, on a machine of
                   its own */
    int64_t min_nodes, max_nodes, nproc, max_restarts;
    size_t nodes;      /* how many are started */
    size_t host;       /* the node that the endpoint names */
    uint64_t work_us;  /* how long complete worlds have to compute in all */
    uint64_t grace_ms; /* loss_grace_ms; 0: the default */
    uint64_t join_s;   /* join_timeout */
    uint64_t last_call_s;
    enum job_manners manners;
    bool workers_fail_with_peers; /* otherwise they hang */
    uint64_t import_us;           /* until a worker connects to the others, at most */
};

/* One world of the job: workers that have found each other. */
struct job_meeting {
    int64_t world, round;
    char master[64];
    int64_t restarts; /* before it */
    size_t met;       /* workers that have passed its barrier */
    size_t lost;      /* how many of those have ended */
    uint64_t full_t;  /* since when all workers are there; OS_NEVER: they are not */
    bool over;        /* it has done the rest of the work */
    struct os_process *members[JOB_NODES * JOB_NPROC];
};

struct job {
    struct job_settings set;
    struct job_node nodes[JOB_NODES];
    struct job_meeting *meetings[JOB_MEETINGS];
    size_t meeting_count;
    const struct job_meeting *last; /* the one that has finished the work */
    uint64_t done_us;               /* how much of work_us is done */
    uint64_t done_t;                /* when all of it was done; OS_NEVER: not yet */
    size_t etcd_members;            /* of the cluster; 0: there is none */
    bool long_outage;      /* the host, or etcd, was away for longer than it may be */
    uint64_t away_us;      /* how long nodes were away for longer than that, in all */
    uint64_t last_fault_t; /* when the last fault is over */
    uint64_t half_t;       /* until then one side alone knows that a connection broke */
    unsigned cuts, kills, stops, signals; /* faults so far */
    unsigned starved;                     /* agents of which an allocation has failed */
    unsigned moments;         /* how many faults job_moment() has still to cause */
    bool only_resets;         /* those are resets */
    bool only_pauses;         /* those are pauses */
    bool only_failures;       /* workers fail, and nothing that costs a node its seat */
    bool cluster_alone;       /* faults hit only the etcd cluster */
    unsigned strays;          /* workers of a lost node that came to a later world */
    bool host_lost;           /* the process that serves the store was killed */
    unsigned worker_failures; /* faults that made a worker fail */
    struct job_failure failures[JOB_FAILURES];
    size_t failure_count;
    struct job_record record;
};

extern struct job *the_job;

/* Something has happened, a message or a worker's step. Some faults wait for such a
 * moment, and one may follow now. */
void job_moment(void);

bool job_awake(const struct job_node *n); /* neither stopped nor cut off lately */
struct job_node *job_current(void); /* whose agent runs; NULL: something else does */

/* Plays one job. False: a promise was broken, and os.fail says which. */
bool job_play(uint64_t seed, const char *backend, const char *faults, bool loud);
extern uint64_t job_node_us; /* simulated time of all nodes, added up */

/* ---- job_worker.c ---- */

struct job_worker {
    struct job_node *node;
    char **env; /* allocated with os_alloc() */
    uint32_t id;
    struct os_process *process;
    struct job_meeting *meeting; /* the world that it is in; NULL: none yet */
    int64_t round;
    bool told;    /* by its agent, to end */
    bool counted; /* its agent knew how many restarts there had been */
};

int64_t job_worker_number(const struct job_worker *w,
                          const char *name); /* of its env */
int job_worker_main(void *worker);
void job_worker_ended(struct job_worker *w);

/* ---- job_record.c: what must hold for the record and the budget ---- */

bool job_shares_budget(const struct job *j); /* restarts are counted for all nodes */
bool job_shares_record(const struct job_node *n); /* its agent does, right now */
int64_t job_failed_rounds(int64_t below);
void job_check_restart_count(const struct job_node *n, int64_t count);
void job_check_budget(const struct job *j);

/* ---- job_http.c: an etcd cluster behind net/http.h ---- */

void job_etcd_start(struct job *j, const char *backend);
void job_etcd_stop(void);
bool job_etcd_fault(uint64_t for_us); /* hits a member; false: there is no cluster */
bool job_etcd_flaps(void);            /* it has lost a leader soon after its election */
void job_etcd_cut(const struct job_node *n, uint64_t until_t);
void job_etcd_reset(const struct job_node *n);
void job_etcd_life(const struct job_node *n, bool alive);

/* ---- job_guard.c: process/guard.h for simulated agents ---- */

/* The agent has ended, in whatever way: its workers end too. */
void job_agent_gone(struct job_node *n);

#endif
