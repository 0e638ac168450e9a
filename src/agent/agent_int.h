/* agent_int.h - what the files of the agent share: one struct agent. */
#ifndef AGENT_AGENT_INT_H
#define AGENT_AGENT_INT_H

#include "agent/agent.h"
#include "agent/core/failure_report.h"
#include "agent/core/file_timer.h"
#include "agent/core/wait_message.h"
#include "agent/who_is_missing.h"
#include "base/buf.h"
#include "base/signal_names.h"
#include "job/core/verdict.h"
#include "job/session.h"
#include "launch/core/worker_env.h"
#include "logs/core/last_words.h"
#include "logs/worker_logs.h"
#include "loop/deadline.h"
#include "rendezvous/core/rank_exchange.h"
#include "stacks/service.h"
#include "status/local_socket.h"
#include "store/dialogue_driver.h"
#include "warm/warm.h"

struct agent_worker {
    pid_t pid; /* 0 until the guard has told */
    bool answered, exited;
    int64_t signalled_us; /* wall clock: by us, before it was gone; 0: not */
    bool dumped;          /* a core */
    uint64_t peak_kb;
    bool asked_warm, forked; /* of the warm interpreter; by it */
    int code;                /* as Python has it */
    int aborted;             /* what it gave MPI_Abort, as an exit code; 0: nothing */
    bool left_early;         /* with code 0, but without MPI_Finalize */
    int64_t exited_us;       /* wall clock */
    int64_t exited_mono_us;  /* the same by uv_hrtime() */
    uint64_t order;          /* of exits seen in this attempt */
    uint64_t stuck_since;    /* loop time; 0: not in uninterruptible sleep */
    char *error_file;        /* owned; "" if there is no log directory */
    int result_fd;           /* -1: none */
    uv_poll_t *result_poll;  /* on the heap: it outlives the attempt by a turn */
    struct buf result;
};

/* The steps from one attempt's end to the next one's start. */
enum restart_step {
    STEP_STOP,
    STEP_OUTPUT,
    STEP_JUDGE,
    STEP_RENDEZVOUS,
    STEP_RANKS,
    STEP_START,
    STEPS,
};

/* Files that have state of their own keep it in a struct that only they know. */
struct agent {
    uv_loop_t loop;
    struct agent_opts opts;
    const struct log *log;              /* borrowed: that of opts.log */
    const struct launch_config *config; /* borrowed */
    struct agent_core core;

    struct agent_driver *driver;       /* agent.c, owned as is all that follows */
    struct agent_starting *starting;   /* workers.c */
    struct agent_signals *signals;     /* signals.c */
    struct agent_health *health;       /* worker_health.c */
    struct agent_wait *wait;           /* wait_status.c */
    struct agent_net *net;             /* worker_net.c */
    struct agent_telemetry *telemetry; /* telemetry.c */
    struct agent_steps *steps;         /* step_times.c */
    struct agent_serve *serve;         /* serve.c; NULL: no --rdzv-serve */
    struct agent_status *status;       /* status.c; NULL: nobody can ask */
    struct local_socket *local;        /* where `muster status` asks; NULL: nowhere */
    struct stacks_service *stacks;     /* NULL: nobody can ask for them */
    struct hang *hang;                 /* NULL: --hang was not given */
    struct agent_framework *framework; /* framework.c; NULL: no --for */
    struct warm *warm;                 /* NULL: not asked for */
    struct agent_policy *policy;       /* policy.c; NULL: none was needed so far */
    struct agent_notice *notice;       /* notice.c; likewise */
    uv_poll_t *notify;                 /* notify.c; NULL: nobody is told */
    struct guard *guard;
    struct logs *logs;
    struct rdzv_handler *handler;

    struct rdzv_round round; /* texts are the handler's, until the next join */
    struct rank_range range; /* the ranks of our workers */
    bool assigned;           /* range has been set */
    bool run_closed;         /* by another node */
    struct {
        struct dialogue_driver *driver; /* owned; NULL: neither is under way */
        struct rank_exchange exchange;  /* before the workers start, */
        struct exit_barrier barrier;    /* and when they are done */
    } dialogue;

    struct agent_worker *workers; /* owned, nproc of them */
    int64_t starts;      /* of workers so far: attempts, and rounds that changed */
    int64_t attempt;     /* that the workers were started for */
    int64_t started_us;  /* the workers, last; wall clock */
    uint64_t started_ms; /* likewise, by clock_mono_ms */
    int refused;         /* errno of the first worker that could not be started, or 0 */
    struct failure *failures; /* owned: of the last attempt, as observed */
    size_t failure_count;
    int64_t oom_kills; /* as of the start; -1: unknown */

    struct {
        struct session *session;
        bool synced;       /* with what the others have told before this round */
        bool assigned;     /* ranks are known */
        bool ranks_sent;   /* to the coordinator: this round counts from now on */
        bool own_budget;   /* restarts are counted on this node alone */
        bool closes;       /* the run, once we have said goodbye */
        bool cut_off;      /* from whoever serves the store */
        int64_t failed_us; /* when the worker failed for which we restart; 0: over */
        int64_t failed_round;
        struct gone_nodes gone; /* since this round began */
        uint32_t gone_node;     /* the last whose end was told, by number; 0: none */
        struct restart_lines restarts; /* what was said of them */
        char refusal[512]; /* why the workers could not be started, for all nodes */
        void (*leave)(struct agent *a);
        struct deadline stragglers; /* after the loss of the coordinator */
        uint64_t lost_round;        /* that it was the coordinator of */
    } job;

    char host[1025];           /* as Python's getfqdn has it, once known */
    char stopped_by[256];      /* the signal that ended us, and who sent it */
    int64_t began_us;          /* wall clock */
    struct muster_error fatal; /* the first one */
    struct agent_result *result;
};

/* Queues an event; pump() feeds the queue. */
void agent_post(struct agent *a, enum agent_core_event_kind kind, int64_t worker,
                int code);
void agent_pump(struct agent *a);
void agent_begin(struct agent *a);         /* once all that it waits for is there */
void agent_handler_close(struct agent *a); /* a->handler is NULL once it is gone */
/* Keeps the first reason, and posts FATAL. */
void agent_fail(struct agent *a, const struct muster_error *why);

/* worker_net.c: the interface of the workers. Opening fails if --net means none;
 * choosing is due before workers start. */
int agent_net_open(struct agent *a, struct muster_error *err);
void agent_net_choose(struct agent *a);
const char *agent_net_interface(const struct agent *a); /* "": none */
void agent_net_close(struct agent *a);

/* framework.c: --for. Without it each of these does nothing at once. */
int agent_framework_open(struct agent *a, struct muster_error *err);
void agent_framework_close(struct agent *a);
/* Ranks are known: agrees on what else the workers need, then agent_job_assigned(). */
void agent_framework_assigned(struct agent *a, uint64_t timeout_ms, bool can_rejoin);
int agent_framework_begin(struct agent *a, int64_t attempt, struct muster_error *err);
/* theirs: the worker's end of a socket, if it gets one. */
int agent_framework_worker(struct agent *a, int64_t local_rank,
                           struct worker_place *place, int *theirs,
                           struct muster_error *err);
/* A worker has exited with code 0: whether it had no right to, by MPI's rules. */
bool agent_framework_left_early(struct agent *a, int64_t local_rank);
void agent_framework_over(struct agent *a); /* the workers are gone */
/* The exit code of a job that failed: MPI_Abort's, where MPI is served. */
int agent_framework_code(const struct agent *a, int code);

/* serve.c: the job's own etcd. */
int agent_serve_open(struct agent *a, struct muster_error *err);
bool agent_serve_is_starting(const struct agent *a);
const struct rdzv_params *agent_serve_params(const struct agent *a);
void agent_serve_close(struct agent *a); /* the rendezvous is left before that */

/* What the rendezvous tells beside a round: an event or none. */
void agent_on_news(void *ctx, enum rdzv_news news, const struct muster_error *err);

/* rank_exchange.c */
void agent_assign(struct agent *a);
void agent_end_dialogue(struct agent *a); /* what is under way of either, if anything */
void agent_barrier(struct agent *a);

/* workers.c */
extern const struct guard_events agent_guard_events;
int agent_workers_open(struct agent *a, struct muster_error *err);
void agent_workers_close(struct agent *a);
void agent_start_workers(struct agent *a, int64_t attempt);
void agent_forget_workers(struct agent *a); /* frees what an attempt holds */

/* worker_results.c: the pipes of function workers */
int worker_result_open(struct agent *a, int64_t local_rank, int *worker_end,
                       struct muster_error *err);
void worker_result_read(struct agent *a, int64_t local_rank); /* what is there by now */
void worker_result_close(struct agent_worker *w);
void agent_collect_results(struct agent *a); /* into the result */

/* signals.c. From open on what is only passed on, from on on what ends us, too. */
int agent_signals_open(struct agent *a, struct muster_error *err);
int agent_signals_on(struct agent *a, struct muster_error *err);
void agent_signals_off(struct agent *a);
void agent_signals_quiet(void); /* SIGPIPE and SIGXFSZ, for the whole process */
void agent_signals_unquiet(void);

/* failures.c */
void agent_failed(struct agent *a); /* collects the failures, says which came first */
char *agent_failure_box(struct agent *a); /* torch's; owned by the caller; NULL: none */
void agent_notify_parent(struct agent *a, enum agent_core_why why);
void agent_forget_failures(struct agent *a);
int agent_read_error_file(const char *path, struct buf *out, struct muster_error *err);

/* failure_cause.c. What is known of a worker that failed; the texts of an entry point
 * into it. */
struct failure_words {
    struct last_words words;
    struct buf text;
    char *path; /* owned, or NULL */
};
void agent_describe(struct agent *a, int64_t local_rank, struct failure_words *words,
                    struct record_entry *e);
void agent_words_fini(struct failure_words *words);
/* We ended it, but it was failing by itself: it has written why. */
bool agent_was_failing(struct agent *a, int64_t local_rank);

/* job.c */
int64_t agent_job_round(const struct agent *a); /* as the job counts them */
/* The level of a message about a restart: lower while restarts are only counted. */
enum log_level agent_restart_level(const struct agent *a, enum log_level usual);
int agent_job_open(struct agent *a, struct muster_error *err);
void agent_job_close(struct agent *a);
void agent_job_joined(struct agent *a); /* a round: find its coordinator */
void agent_job_spare(struct agent *a);  /* we wait as a spare: the others should know */
void agent_job_assigned(struct agent *a); /* ranks are known: posts ASSIGNED, soon */
void agent_job_exited(struct agent *a, int64_t local_rank);
void agent_job_moved(struct agent *a);  /* they are about to be stopped for the next */
void agent_job_report(struct agent *a); /* all workers of the round are gone */
/* Says goodbye to the coordinator, then calls leave, at once or soon. */
void agent_job_leave(struct agent *a, void (*leave)(struct agent *a));
/* How the job ended, if its coordinator could not tell. */
void agent_job_conclude(struct agent *a, enum agent_core_why why);
/* The workers of this node could not be started; the others must not wait for them. */
void agent_job_refused(struct agent *a, struct span text);
void agent_job_story(struct agent *a);    /* into the result */
void agent_write_report(struct agent *a); /* --report, if it was given */
/* Owned by the caller; NULL if there is none, or if it says what the error has said. */
char *agent_verdict(struct agent *a, enum agent_core_why why);

/* notice.c: preemption with a clock. open reads the options, on begins to listen. */
int agent_notice_open(struct agent *a, struct muster_error *err);
void agent_notice_on(struct agent *a);
void agent_notice_close(struct agent *a);
void agent_notice_free(struct agent *a);
const char *agent_notice_file(const struct agent *a); /* NULL: none */
int agent_notice_next_signal(const struct agent *a,
                             size_t i); /* the i-th; 0: no more */
/* A signal has come; false: it is no notice, or the second one. */
bool agent_notice_signal(struct agent *a, int sig, const char *from);
void agent_notice_entry(struct agent *a, const struct record_entry *e);
/* True: the command of --on-notice still runs, and then is called later. */
bool agent_notice_busy(struct agent *a, void (*then)(void *agent));
int agent_notice_outcome(struct agent *a);          /* for DRAINED */
uint64_t agent_notice_until(const struct agent *a); /* no new round before that; or 0 */
void agent_notice_over(struct agent *a);            /* the next round is joined */
const char *agent_notice_text(const struct agent *a);

/* notify.c: an entry of the record has come, of which others may want to hear. */
void agent_notify_entry(struct agent *a, const struct record_entry *e);
void agent_notify_on(struct agent *a); /* hears what could not be delivered */
void agent_notify_close(struct agent *a);

/* policy.c: restarts by cause. */
int agent_policy_open(struct agent *a, struct muster_error *err);
void agent_policy_close(struct agent *a);
void agent_policy_free(struct agent *a);         /* once the loop is closed */
bool agent_made_progress(const struct agent *a); /* in the attempt that is over */
/* Where each node decides for itself: ranks are known; a worker has failed, which
 * writes the decision into its entry; what came of it, for DRAINED. */
void agent_policy_started(struct agent *a);
void agent_policy_failed(struct agent *a, struct record_entry *e);
int agent_policy_outcome(const struct agent *a);
/* The next round is to wait so long; true: it waits, and join is called later, unless
 * cancel (true: it did) comes first. */
void agent_policy_hold(struct agent *a, uint64_t ms);
bool agent_policy_holds(struct agent *a, void (*join)(struct agent *a));
bool agent_policy_cancel(struct agent *a);
void agent_policy_release(struct agent *a);           /* it may be joined now */
uint64_t agent_policy_wait_ms(const struct agent *a); /* 0: it does not wait */
/* That of --exit-codes, if it was given. */
int agent_exit_code(const struct agent *a, enum agent_core_why why, int usual);

/* step_times.c */
int agent_steps_open(struct agent *a, struct muster_error *err);
void agent_step(struct agent *a, enum restart_step step); /* it begins */
void agent_steps_started(struct agent *a); /* the workers run: the steps are over */
void agent_steps_over(struct agent *a);    /* and now they do not any more */

/* telemetry.c */
int agent_telemetry_open(struct agent *a, struct muster_error *err);
void agent_telemetry_close(struct agent *a);
bool agent_events_wanted(const struct agent *a);
bool agent_events_in_file(const struct agent *a); /* rather than on the console */
void agent_event_lap(struct agent *a, const char *state); /* how long since the last */
double agent_event_lap_s(const struct agent *a);
void agent_event(struct agent *a, const char *state, double duration_ms,
                 const char *raw_error);
void agent_worker_event(struct agent *a, const char *state, int64_t local_rank,
                        const struct failure *f, const char *raw_error);
void agent_watchdog_event(struct agent *a, const char *name,
                          const struct timer_entry *e);
void agent_events_end(struct agent *a, enum agent_core_why why);
void agent_measure(struct agent *a, const struct agent_core_fx *fx);
void agent_measure_started(struct agent *a);
void agent_measure_end(struct agent *a, enum agent_core_why why);

/* wait_status.c: what is shown while we wait for other nodes, until by_ms (the
 * rendezvous knows its own). Whatever was waited for before is over; came: as it should
 * be. */
int agent_wait_open(struct agent *a, struct muster_error *err);
void agent_wait_close(struct agent *a);
void agent_on_run_closed(struct agent *a);
void agent_wait_begin(struct agent *a, enum waiting_for what, uint64_t by_ms);
void agent_wait_end(struct agent *a, bool came);

/* On a terminal: how long the workers have to end, after a signal has told them to. */
void agent_show_stopping(struct agent *a);
void agent_stopping_over(struct agent *a);

/* What we wait for, for people; nothing if we do not. */
int agent_wait_text(struct agent *a, struct buf *b);

/* stacks.c: `muster stacks` can ask from open to close, on the socket of the status. */
void agent_stacks_open(struct agent *a);
void agent_stacks_close(struct agent *a);
size_t agent_stacks_targets(void *ctx, struct stacks_target *out, size_t most);

/* Before workers are killed because they took too long: their stacks, within 2 s, into
 * the log; then cb. False: nobody can look, and cb does not come. */
bool agent_stacks_before(struct agent *a, const char *what, void (*cb)(void *ctx),
                         void *ctx);
void agent_kill_workers(void *agent);

/* hang.c: from open to close, while workers run. */
void agent_hang_open(struct agent *a);
void agent_hang_close(struct agent *a);
void agent_hang_entry(struct agent *a,
                      const struct record_entry *e); /* of the record */

/* status.c: `muster status` can ask from open to close. */
int agent_status_check(struct agent *a, struct muster_error *err);
void agent_status_open(struct agent *a);
void agent_status_changed(struct agent *a); /* perhaps: viewers should know */
void agent_status_news(struct agent *a);    /* the record has a new entry */
void agent_status_close(struct agent *a);
void agent_status_free(struct agent *a); /* once the loop is closed */

/* worker_health.c */
int agent_health_open(struct agent *a, struct muster_error *err);
void agent_health_close(struct agent *a);
const char *agent_timer_file(const struct agent *a); /* NULL: no file timer */
int agent_watch_on(struct agent *a, struct muster_error *err);
void agent_watch_off(struct agent *a);

/* messages.c */
void agent_log_config(struct agent *a);
void agent_log_round(struct agent *a);
void agent_log(struct agent *a, const struct agent_core_fx *fx);

#endif
