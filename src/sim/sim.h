/* sim.h - many nodes and one host on a virtual clock and a network of bytes.
 *
 * The cores are the real ones: the nodes' rendezvous (rendezvous/core/cas_node.h,
 * rendezvous/core/member.h), the host's store engine and coordinator, and the c10d wire
 * between them. What the drivers do is simulated: clocks, connections, processes. The
 * same seed always gives the same run. */
#ifndef SIM_SIM_H
#define SIM_SIM_H

#include "base/buf.h"
#include "base/rng.h"
#include "job/core/sessions.h"
#include "rendezvous/core/cas_node.h"
#include "rendezvous/core/member.h"
#include "store/core/store.h"
#include "store/core/wire.h"

#define SIM_RUN      "sim"
#define SIM_WIRE_KEY "/" RDZV_C10D_PREFIX SIM_RUN
#define SIM_NEVER    UINT64_MAX
#define SIM_WALL_US  1767323045000000ll /* the host's wall clock at time 0 */

struct sim;
struct sim_node;
struct sim_conn;
struct sim_call;
struct sim_etcd;

/* What a node is made of. */
enum sim_kind {
    SIM_OURS,   /* core/cas_node.c on the state's key; the store reports changes */
    SIM_POLLER, /* the same on a store that cannot report changes */
    SIM_TORCH,  /* torchrun's protocol: polls, compares wall clocks */
    SIM_HOSTED, /* rendezvous/core/member.c: the host's coordinator owns the state */
    SIM_KINDS
};

extern const char *const sim_kind_names[SIM_KINDS];

/* ---- world.c: time and what happens when ---- */

enum sim_event_kind {
    SIM_EV_UP,      /* bytes reach the host */
    SIM_EV_DOWN,    /* bytes reach the node */
    SIM_EV_OPENED,  /* the node's connection is open */
    SIM_EV_BROKEN,  /* the node learns that its connection is closed */
    SIM_EV_DROPPED, /* the host learns that a connection is closed */
    SIM_EV_TIMER,   /* of a node */
    SIM_EV_HOST_TIMER,
    SIM_EV_AGENT,     /* what = enum sim_todo */
    SIM_EV_FAULT,     /* what = enum sim_fault */
    SIM_EV_ETCD_AT,   /* a request reaches a member of the cluster */
    SIM_EV_ETCD_BACK, /* something comes back to the node */
    SIM_EV_ETCD_TICK, /* what = enum etcd_tick */
};

struct sim_event {
    uint64_t t, seq; /* microseconds; events at the same time come in order of seq */
    enum sim_event_kind kind;
    int what;
    uint32_t node, boot; /* boot: of which start of the node; old events are dropped */
    struct sim_conn *conn;
    struct sim_call *call; /* a reference */
    uint8_t *bytes;        /* owned */
    size_t n;
};

struct sim_event *sim_at(struct sim *s, uint64_t t, enum sim_event_kind kind);

/* ---- the world ---- */

struct sim_config {
    uint64_t seed;
    struct rdzv_settings settings;
    uint64_t delay_us, jitter_us; /* one way */
    bool quiet;                   /* no transcript */
    bool any_cut;                 /* bytes come in arbitrary pieces */
    uint64_t grace_ms;            /* of hosted nodes */
    bool many; /* too many nodes to check each of them after a step */
};

struct sim_host {
    bool up;
    struct store *store;
    struct store_fx fx;
    struct sessions sessions;
    struct coordinator *rdzv; /* the coordinator, once a node has spoken to it */
    struct coordinator_fx *rdzv_fx;
    bool watched;            /* somebody waits for the state's key to change */
    uint32_t epoch;          /* how often the host has started with an empty store */
    struct sim_conn **conns; /* owned; by peer number */
    size_t conn_count, conn_room;
    size_t free_from; /* no peer number below it is free */
    uint64_t timer_t;
    struct rdzv_state last; /* the state's key, as last written */
    bool last_valid;
    struct buf last_value;
    uint64_t requests;
};

struct sim {
    struct sim_config cfg;
    struct rng rng;
    uint64_t t; /* microseconds since the beginning */
    struct sim_event *heap;
    size_t heap_count, heap_room;
    uint64_t seq, steps;
    struct sim_host host;
    struct sim_node *nodes;
    size_t count;
    struct buf out;    /* the transcript */
    struct buf hashed; /* the value that was last watched */
    uint64_t hash;     /* reserved_hash() of it */
    char fail[1024];   /* the first broken promise; empty: none */
    struct sim_checks *checks;
    uint64_t host_calm_t;  /* since when the host is up */
    bool autopilot;        /* agents react by themselves, as in a real job */
    uint64_t react_us;     /* how long they take to stop their workers, at most */
    struct sim_etcd *etcd; /* the cluster, if the group is on one */
};

void sim_init(struct sim *s, const struct sim_config *cfg);
void sim_fini(struct sim *s);

/* Adds a node. It does nothing until SIM_DO_START. */
struct sim_node *sim_add(struct sim *s, enum sim_kind kind, const char *name);

/* Runs until the time given, or until a promise is broken (false). */
bool sim_run(struct sim *s, uint64_t until_t);

/* One line of the transcript. */
void sim_log(struct sim *s, const struct sim_node *n, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Aborts if rc is an error: for calls that can only fail if memory runs out or the
 * simulator is wrong. */
void sim_must(int rc);

/* A promise is broken: the run ends here. */
void sim_fail(struct sim *s, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- net.c: connections, on which bytes come late and in pieces, but in order ---- */

struct sim_conn {
    struct sim_node *node;
    uint32_t node_index, boot, peer;
    bool at_node, at_host; /* open on that side */
    uint32_t refs;         /* events that point here, and the two sides */
    uint64_t up_t, down_t; /* when the last byte arrives; none overtakes it */
    struct buf in_host, in_node;
    struct c10d_decoder decoder;
    enum c10d_op asked[16]; /* requests without an answer, a ring */
    unsigned asked_first, asked_count;
    bool hosted;     /* messages of rendezvous/core/coordinator_wire.h from now on */
    bool power_lost; /* the machine has no power: nothing more comes from it */
};

struct sim_conn *sim_connect(struct sim_node *n);
void sim_hang_up(struct sim_conn *c); /* the node closes it */
void sim_drop(struct sim_conn *c);    /* the host closes it */
void sim_send_down(struct sim_conn *c, struct span bytes);
void sim_request(struct sim_conn *c, const struct c10d_request *req);
void sim_conn_unref(struct sim_conn *c);
void sim_net_event(struct sim *s, struct sim_event *ev);

/* ---- server.c: the host's side ---- */

void sim_host_start(struct sim *s);
void sim_host_stop(struct sim *s); /* crash: every connection breaks */
void sim_host_bytes(struct sim *s, struct sim_conn *c);
void sim_host_left(struct sim *s, struct sim_conn *c);
void sim_host_timer(struct sim *s);

/* ---- nodes ---- */

/* What a kind of node does when its agent asks for something. */
struct sim_driver {
    void (*start)(struct sim_node *n);
    void (*stop)(struct sim_node *n); /* frees what start allocated */
    void (*request)(struct sim_node *n, enum rdzv_event_kind request);
    void (*opened)(struct sim_conn *c);
    void (*broken)(struct sim_conn *c);
    void (*reply)(struct sim_conn *c, const struct c10d_reply *r);
    void (*bytes)(struct sim_conn *c); /* instead of reply, if conn->hosted */
    void (*timer)(struct sim_node *n);
    uint64_t (*deadline)(const struct sim_node *n); /* mono_ms */
    /* The members of the round that was last joined, in rank order. NULL: this kind
     * does not know them. */
    const struct rdzv_node *(*members)(const struct sim_node *n, size_t *count);
};

extern const struct sim_driver sim_ours, sim_torch, sim_hosted;

enum sim_life {
    SIM_OFF,     /* not started, or ended */
    SIM_JOINING, /* waits for the answer to JOIN */
    SIM_RUNNING, /* member of a round */
    SIM_LEAVING,
};

struct sim_node {
    struct sim *sim;
    enum sim_kind kind;
    const struct sim_driver *driver;
    char name[16];
    uint32_t index, boot;
    int64_t pid;
    enum sim_life life;
    bool alive;         /* its process runs, or is stopped */
    uint64_t stopped_t; /* until when it is stopped by SIGSTOP */
    uint64_t cut_t;     /* until when no byte gets through */
    int64_t skew_us;    /* of its wall clock */
    uint64_t mono_off_ms;
    uint64_t timer_t;       /* of its earliest TIMER event that is to come */
    void *core;             /* what its driver allocated */
    struct sim_call *calls; /* to the etcd cluster, still without an answer */
    unsigned opened;        /* a bit for each member of it that it is connected to */
    struct rng rng;

    /* What its agent knows. */
    bool spare, closing, wants_in;
    uint64_t join_t, join_by_t; /* of the JOIN under way */
    uint64_t calm_from_t;       /* since when no fault affects it */
    int64_t round, rank, world; /* of the round that it joined last */
    uint32_t epoch;             /* of the host that it is connected to */
    uint32_t round_epoch;       /* of the host that it joined that round at */
    int64_t fail_round;         /* the round whose workers are about to end */
    uint64_t lost_since_t;      /* since when a member of its round is dead, if it has
                                   not been notified; or SIM_NEVER */
};

struct now sim_now(const struct sim_node *n);
struct rdzv_node sim_identity(const struct sim_node *n);
void sim_arm(struct sim_node *n); /* makes a TIMER event for the driver's deadline */
bool sim_is_stopped(const struct sim_node *n);

/* ---- agent.c: what torchrun or muster run would do with the outcomes ---- */

enum sim_todo {
    SIM_DO_START,
    SIM_DO_JOIN,
    SIM_DO_FAIL, /* its workers fail or are stopped: it joins again, if it is still in
                    that round */
    SIM_DO_LEAVE,
    SIM_DO_CLOSE,
    SIM_DO_END
};

void sim_notified(struct sim_node *n, const struct rdzv_effect *e);
void sim_do(struct sim_node *n, enum sim_todo todo);
void sim_do_at(struct sim_node *n, uint64_t t, enum sim_todo todo);
void sim_kill(struct sim_node *n);

/* ---- check.c: what must hold at every step ---- */

struct sim_checks *sim_checks_new(void);
void sim_checks_free(struct sim_checks *c);
void sim_check_joined(struct sim_node *n, const struct rdzv_effect *e);
void sim_check_gone(struct sim_node *n); /* it left its round, or died */
void sim_check_state(struct sim *s, struct span value, uint32_t peer);
void sim_check_step(struct sim *s);
void sim_check_end(struct sim *s);

/* ---- chaos.c: random runs ---- */

enum sim_fault {
    SIM_KILL,
    SIM_STOP,
    SIM_CUT,
    SIM_RESET,
    SIM_JUMP,
    SIM_HOST_CRASH,
    SIM_HOST_BACK,
    SIM_FAULTS
};

void sim_fault_now(struct sim *s, const struct sim_event *ev);
double sim_cpu_seconds(void);
bool sim_play(uint64_t seed, const char *kinds, bool loud, uint64_t *node_us,
              char *fail, size_t size);

/* One run of so many nodes: a round, a minute of heartbeats, a lost node, the next
 * round. Prints figures. Returns 0, or 1 if a promise was broken. */
int sim_crowd(size_t nodes, enum sim_kind kind);

/* ---- script.c: cases with transcripts ---- */

/* Plays the case. Appends to out the file as it would be with the actual transcript. */
int sim_script(const char *text, struct buf *out);

#endif
