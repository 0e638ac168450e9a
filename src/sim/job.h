/* job.h - whole jobs on simulated machines: the real agents, rendezvous and stores,
 * with simulated workers and faults. See os.h for what they run on. */
#ifndef SIM_JOB_H
#define SIM_JOB_H

#include "base/buf.h"
#include "base/log.h"
#include "sim/os.h"
#include "store/async_store.h"

#define JOB_RUN      "sim" /* the run id */
#define JOB_PORT     29400
#define JOB_NPROC    4 /* workers of a node, at most */
#define JOB_MEETINGS 512
#define JOB_FAILURES 1024
#define JOB_ENTRIES  1024

struct job;

/* What a node runs: muster; muster that takes no part in a coordinator (hosted=0); or
 * torchrun. */
enum job_kind { JOB_OURS, JOB_FALLBACK, JOB_TORCH };

/* What goes wrong. */
enum job_theme {
    THEME_CALM,    /* nothing goes wrong */
    THEME_RESET,   /* connections are reset */
    THEME_FAIL,    /* workers fail; connections are reset, clocks are set */
    THEME_PAUSE,   /* processes are stopped for seconds to minutes */
    THEME_STORM,   /* anything goes wrong */
    THEME_MEMORY,  /* one allocation fails */
    THEME_CLUSTER, /* members of the etcd cluster fail, and nothing else */
    THEME_STARVE   /* anything goes wrong, and an allocation fails */
};

/* How a worker reacts to SIGTERM: it ends at once, later, or not at all. */
enum job_manners { JOB_POLITE, JOB_SLOW, JOB_DEAF };

struct job_node {
    struct job *job;
    size_t index;
    enum job_kind kind;
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
    bool starved;             /* such an allocation has failed: */
    unsigned long fail_alloc; /* which allocation of its agent fails; 0: none */
    uint64_t start_t, end_t;
    uint64_t idle_t; /* when its last worker ended */
    unsigned workers_started;
    const struct job_meeting *met; /* the last world that its workers were in */
    struct guard *guard;           /* of the agent that runs; NULL: none */
    struct torchrun *torchrun;     /* likewise */
    struct job_watch *watch;       /* between its agent and its rendezvous */
    bool asking, seated;           /* its agent waits for a round; it is in one */
    uint64_t seat_heard;           /* what heard was when it was told of its round */
    uint64_t asked, heard; /* how often it has asked, and asked or been told anything */
    int64_t seat_round;    /* the round that it joined last, */
    uint32_t ask_epoch;    /* the store's, when it last asked */
    uint32_t seat_epoch;   /* at which store, */
    const struct os_process *seat_of; /* and in which life */
    struct session *session;          /* likewise */
    bool concludes;                   /* it adds an entry for itself alone */
    bool blames_worker;               /* in the verdict that it has */
    uint64_t entry;                   /* number of the last entry that it has got */
    int64_t round;                    /* of its workers */
    const char *words[JOB_NPROC];     /* the last words of its workers; NULL: none */
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
    bool mixed;       /* not all nodes run the same */
    bool plain;       /* the store has no coordinator, like torch's */
    bool store_apart; /* it is on a machine of its own */
    int64_t min_nodes, max_nodes, nproc, max_restarts;
    char policy[100], backoff[20], budget[20]; /* of restarts; "": not given */
    size_t nodes;                              /* how many are started */
    size_t host;                               /* the node that the endpoint names */
    uint64_t work_us;  /* how long complete worlds have to compute in all */
    uint64_t grace_ms; /* loss_grace_ms; 0: the default */
    uint64_t join_s;   /* join_timeout */
    uint64_t last_call_s;
    enum job_manners manners;
    bool workers_fail_with_peers; /* otherwise they hang */
    bool share;                   /* agents serve the workers' stores */
    bool spare_torch;             /* torchrun's connections are not reset */
    bool idle_workers;            /* they do nothing: for thousands of nodes */
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
    struct os_process **members; /* by rank */
};

struct job {
    struct job_settings set;
    struct job_node *nodes;
    size_t torchruns; /* how many of them run torchrun */
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
    uint32_t epoch;                   /* how often a store was started */
    struct job_round *rounds;         /* that nodes have been told of */
    struct os_machine *store_machine; /* if the store is apart */
    struct os_process *store;
};

extern struct job *the_job;

/* Something has happened, a message or a worker's step. Some faults wait for such a
 * moment, and one may follow now. */
void job_moment(void);
void job_log(void *ctx, enum log_level level, enum log_place place, const char *text);

bool job_awake(const struct job_node *n); /* neither stopped nor cut off lately */
struct job_node *job_current(void); /* whose agent runs; NULL: something else does */

/* A job of which each step is asked for. It has no nodes yet, and room for so many. */
void job_begin(uint64_t seed, bool loud, size_t room);
void job_end(void);
struct job_node *job_add_node(enum job_kind kind, const char *name);
void job_start_store(void *arg, uint64_t n); /* on a machine of its own */
void job_stop_store(void);
void job_fail_worker(const struct job_node *n); /* one of its workers fails */

/* Plays one job. False: a promise was broken, and os.fail says which. */
bool job_play(uint64_t seed, const char *backend, const char *faults, bool loud);
extern uint64_t job_node_us; /* simulated time of all nodes, added up */

/* Events of a node's life, for os_at(); due: 1 if the start is one of starts_due. */
void job_start_node(void *node, uint64_t due);
void job_cut_node(struct job_node *n, bool both, uint64_t until_t);

const char *job_host_name(const struct job *j); /* of whoever serves the store */

/* A line of a case's transcript. */
void job_tell(const char *who, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- script.c, crowd.c ---- */

/* Plays the case. Appends to out the file as it would be with the actual transcript. */
int script_play(const char *text, struct buf *out);

/* Plays one large group: a round, a minute of heartbeats, a lost node, the next round.
 * Prints figures. Returns 0, or 1 if a promise was broken. */
int crowd_play(size_t nodes);
double sim_cpu_seconds(void);

/* ---- check.c: what must hold ---- */

void job_check_begin(void);
void job_check_gone(struct job_node *n); /* its agent has ended */
void job_check_end(const struct job *j, enum job_theme theme);

/* ---- job_worker.c ---- */

/* A connection to a store on which a process makes one call after the other. */
struct job_store {
    uv_loop_t loop;
    uv_timer_t timer;
    struct async_store *store;
    bool done;
    int status;
    int64_t number;   /* of the last answer, */
    struct buf value; /* as is this */
};

void job_store_init(struct job_store *t);
int job_store_open(struct job_store *t, const char *host, uint16_t port,
                   uint64_t timeout_ms);
void job_store_on_reply(void *ctx, int status, const struct c10d_reply *r,
                        const struct muster_error *err);
/* Waits for the answer to a call that returned rc, and was given the function above. */
int job_store_wait(struct job_store *t, int rc);
const char *job_store_text(struct job_store *t); /* the value of the last answer */
void job_store_doze(struct job_store *t, uint64_t until_t);
void job_store_sleep(struct job_store *t, uint64_t until_t);

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
void job_worker_signal(struct job_worker *w, int sig);

/* ---- torch.c: a node that runs torchrun ---- */

int job_torch_main(void *node);
void job_torch_gone(struct job_node *n); /* its agent has ended: its workers end too */

/* ---- job_record.c: what must hold for the record and the budget ---- */

bool job_shares_budget(const struct job *j); /* restarts are counted for all nodes */
bool job_shares_record(const struct job_node *n); /* its agent does, right now */
int64_t job_failed_rounds(int64_t below);
void job_check_restart_count(const struct job_node *n, int64_t count);
void job_check_budget(const struct job *j);

/* ---- job_http.c: an etcd cluster behind net/http.h ---- */

void job_etcd_start(struct job *j, const char *backend);
bool job_etcd_fault(uint64_t for_us); /* hits a member; false: there is no cluster */
bool job_etcd_flaps(void);            /* it has lost a leader soon after its election */
void job_etcd_cut(const struct job_node *n, uint64_t until_t);
void job_etcd_reset(const struct job_node *n);
void job_etcd_life(const struct job_node *n);

/* ---- job_guard.c: process/guard.h for simulated agents ---- */

/* The agent has ended, in whatever way: its workers end too. */
void job_agent_gone(struct job_node *n);
bool job_has_workers(const struct job_node *n);

#endif
