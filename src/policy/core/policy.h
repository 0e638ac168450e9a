/* policy.h - what is done about a failure: --restart-policy, --restart-budget and
 * --restart-backoff. Pure: cause, history and time go in, an action comes out.
 *
 * A rule is CAUSE:ACTION; the first that fits counts. Rules of the user's own come
 * before those of `default`, which always follow:
 *
 *     SyntaxError:stop     a program that cannot run will not run the next time,
 *     ImportError:stop     nor one that lacks a module (and their children)
 *     exit:2:stop          a wrong command line
 *     node:free            a lost node is not the program's fault,
 *     notice:free          nor is one that was taken away
 *     repeat:stop          the same failure at the same place in three attempts
 *
 * What fits no rule restarts while --max-restarts and the budget last. */
#ifndef POLICY_CORE_POLICY_H
#define POLICY_CORE_POLICY_H

#include "base/buf.h"
#include "muster/error.h"

#define POLICY_RULES      100u   /* of the user's own, at most */
#define POLICY_TEXT_MAX   16384u /* bytes of them */
#define POLICY_BUDGET_MAX 1000
#define POLICY_REPEATS    3u
#define POLICY_UNLIMITED  INT32_MAX /* as --max-restarts: the budget alone limits */

enum policy_action { POLICY_STOP, POLICY_RESTART, POLICY_FREE };

const char *policy_action_name(enum policy_action action); /* "stop" */

enum policy_kind {
    POLICY_ANY,
    POLICY_REPEAT,
    POLICY_OOM,
    POLICY_HANG,
    POLICY_NODE,
    POLICY_NOTICE,
    POLICY_CHECK,
    POLICY_EXIT,   /* number: the exit code */
    POLICY_SIGNAL, /* number of the signal */
    POLICY_CLASS,  /* an exception of Python's */
    POLICY_OTHER,  /* of a failure: none of these */
};

struct policy_rule {
    enum policy_kind kind;
    enum policy_action action;
    int number;     /* EXIT, SIGNAL */
    int64_t line;   /* CLASS: in file; 0: any */
    char name[80];  /* CLASS */
    char file[100]; /* CLASS: the end of the path; "": any */
    bool by_default;
};

struct policy {
    struct policy_rule *rules; /* owned */
    size_t count;
    int64_t budget; /* restarts in window_ms; 0: no budget */
    uint64_t window_ms;
    uint64_t wait_least_ms, wait_most_ms; /* of the back-off; 0: none */
};

/* The three options as given, rules being those of the file if one was named; NULL: not
 * given. MUSTER_EINVAL: err says what is wrong, and the nearest valid word. */
struct policy_options {
    const char *rules, *budget, *backoff;
};

int policy_parse(struct policy *p, const struct policy_options *o,
                 struct muster_error *err);
void policy_fini(struct policy *p); /* NULL and zeroed are fine */

/* The same in one text, which is equal for equal policies, and back. */
int policy_print(struct buf *out, const struct policy *p);
int policy_scan(struct policy *p, struct span text, struct muster_error *err);

/* "ImportError:stop" */
void policy_rule_print(struct buf *out, const struct policy_rule *r);
/* "5/1h" */
void policy_budget_print(struct buf *out, const struct policy *p);

/* What happens for each cause, a line each, for --print-config. */
void policy_explain(struct buf *out, const struct policy *p, int64_t max_restarts);

/* ---- the decision ---- */

struct policy_failure {
    enum policy_kind kind;
    int number;       /* EXIT, SIGNAL */
    struct span name; /* CLASS: "ValueError", "torch.OutOfMemoryError" */
    struct span file; /* CLASS: where; empty: not known */
    int64_t line;
    bool progress;         /* was made in the attempt that failed */
    int64_t used, allowed; /* restarts so far, and --max-restarts */
    uint64_t now_us;
    bool only_asked; /* a restart is not counted yet */
};

/* Zeroed at the start. Nothing in it refers to the policy, but its budget sets how many
 * times are kept. */
struct policy_history {
    uint64_t *times; /* owned: of the last counted restarts, a ring */
    size_t head, count, size;
    uint64_t same;  /* the last failure, as a number; 0: its place is not known */
    unsigned equal; /* attempts that ended with it, without progress in between */
    unsigned tries; /* restarts without progress in between, for the back-off */
};

void policy_history_fini(struct policy_history *h); /* zeroed is fine */

/* Why it was decided so. On the wire: new ones go to the end. */
enum policy_reason {
    POLICY_BY_NOBODY, /* there is no policy */
    POLICY_BY_COUNT,  /* restarts are left */
    POLICY_BY_FREE,   /* a rule: not counted */
    POLICY_BY_RULE,   /* a rule: not restarted */
    POLICY_BY_REPEAT, /* the same failure again */
    POLICY_BY_LIMIT,  /* --max-restarts is used up */
    POLICY_BY_BUDGET, /* --restart-budget is used up */
    POLICY_REASONS
};

const char *policy_reason_name(uint32_t reason); /* "repeat"; "?" if unknown */

struct policy_decision {
    enum policy_action action;
    enum policy_reason reason;
    const struct policy_rule *rule; /* borrowed; NULL: none fits */
    int64_t left;     /* counted restarts that are left after it; -1: no limit */
    uint64_t wait_us; /* before the next attempt */
};

/* Decides and remembers. 0 or MUSTER_ENOMEM, with nothing changed. */
int policy_decide(const struct policy *p, struct policy_history *h,
                  const struct policy_failure *f, struct policy_decision *out);

/* Whether one of the rules of `default` stops such a failure the first time. */
bool policy_stops_by_default(const struct policy_failure *f);

/* A restart that counted was decided elsewhere, at that time. 0 or MUSTER_ENOMEM. */
int policy_note_restart(const struct policy *p, struct policy_history *h, uint64_t us);

#endif
