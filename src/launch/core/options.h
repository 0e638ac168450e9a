/* options.h - the command line of `muster run`, which is torchrun's.
 *
 * One table (options_table) drives the parser, the PET_ variables, --help, the man
 * page, shell completion and the test that compares us with torchrun's own parser.
 * Parsing is pure: words and environment come in as data. Texts in the result are
 * borrowed from argv, from the environment or from the table, and live as long as
 * those. */
#ifndef LAUNCH_CORE_OPTIONS_H
#define LAUNCH_CORE_OPTIONS_H

#include "base/base.h"
#include "base/buf.h"
#include "base/text_list.h"
#include "muster/error.h"

enum option_kind {
    OPTION_HELP,
    OPTION_FLAG,
    OPTION_TEXT,
    OPTION_INT,
    OPTION_FLOAT,
    OPTION_CHOICE,
    OPTION_OPTIONAL, /* a text, only behind "="; "" if there is none */
    OPTION_PRINT,    /* a choice that is acted on when it is met, like --help */
    OPTION_LIST,     /* texts between commas; two commas stand for one */
    OPTION_EACH,     /* may be given several times; its variable is a list like that */
};

/* Which program has the option. */
enum option_owner {
    OWNER_TORCH,  /* torchrun's */
    OWNER_LAUNCH, /* only torch.distributed.launch's */
    OWNER_MUSTER, /* ours: never abbreviated, so that torchrun's abbreviations stay
                     unambiguous */
};

#define OPTION_NAME_SIZE 64

struct option_int {
    bool given;
    int64_t value;
};

#define OPTION_EACH_MOST 64

struct option_each {
    const char *items[OPTION_EACH_MOST];
    size_t count;
    bool is_list; /* the one item came from the variable */
};

/* What the user gave, before anything is checked or derived: torchrun's `args`. */
struct options {
    const char *nnodes, *nproc_per_node;
    const char *rdzv_backend, *rdzv_endpoint, *rdzv_id, *rdzv_conf;
    bool standalone;
    bool rdzv_serve;
    struct option_int max_restarts;
    double monitor_interval;
    const char *start_method, *event_log_handler, *role;
    bool module, no_python, run_path;
    const char *log_dir; /* NULL: not given */
    const char *redirects, *tee, *local_ranks_filter;
    const char *log_line_prefix_template;
    const char *duplicate_stdout_filters, *duplicate_stderr_filters; /* NULL: none */
    struct option_int node_rank, master_port;
    const char *master_addr, *local_addr, *logs_specs, *numa_binding;
    const char *signals_to_handle;
    struct option_int shutdown_timeout;
    bool virtual_local_rank;
    bool use_env;
    bool print_config;
    struct option_each env;
    const char *env_file, *framework; /* NULL: not given */
    const char *rank_order;           /* NULL: not given */
    const char *metrics_handler;
    const char *token_file; /* NULL: not given */
    bool token_optional, encrypt;
    const char *warm;                 /* NULL: not given */
    const char *net;                  /* likewise */
    const char *status_http;          /* likewise */
    const char *hang, *progress_file; /* likewise */
    const char *restart_grace;        /* likewise, as the next three */
    const char *restart_policy, *restart_budget, *restart_backoff;
    const char *exit_codes;
    const char *notice, *on_notice, *notify; /* NULL: not given */
    struct option_int log_attempts;
    const char *on_failure, *report;
    const char *failure; /* NULL: as stderr is a terminal or not */
    bool help;       /* --help was met before any error: everything else is ignored */
    bool help_whole; /* it was --help, not -h */
    const char *print_completion; /* likewise; NULL: not given */
    const char *script;
    char *const *script_args; /* borrowed from argv, or NULL */
    size_t n_script_args;
};

struct option_spec {
    const char *name; /* with hyphens, without the leading two */
    char letter;      /* short form, or 0 */
    enum option_kind kind;
    enum option_owner owner;
    bool variable; /* PET_<NAME>, or MUSTER_<NAME> if it is ours, gives the default */
    const char *initial;        /* default as text; NULL: none */
    const char *const *choices; /* NULL-terminated */
    size_t field;               /* offset in struct options */
    const char *help;
};

extern const struct option_spec options_table[];
extern const size_t options_count;

/* How a command line went wrong; decides the exit code. */
enum options_fault {
    OPTIONS_FINE,
    OPTIONS_USAGE, /* the parser refuses it: exit 2 */
    OPTIONS_VALUE, /* torchrun would end with an exception: exit 1 */
};

struct options_input {
    char *const *argv; /* after the program or command name */
    size_t argc;
    char *const *envp; /* NULL-terminated */
    bool launch;       /* `muster launch`: --use-env exists */
};

/* Fills in *o, or says in err what is wrong. The code is MUSTER_EINVAL, or
 * MUSTER_ENOMEM with OPTIONS_VALUE. */
enum options_fault options_parse(struct options *o, const struct options_input *in,
                                 struct muster_error *err);

/* The option's names as messages show them: "-r/--redirects". */
int option_names(struct buf *b, const struct option_spec *s, const char *between);

bool option_takes_value(const struct option_spec *s);

/* True if s can be used in this command. */
static inline bool option_applies(const struct option_spec *s, bool launch)
{
    return s->owner != OWNER_LAUNCH || launch;
}

/* Writes the name with underscores ("nproc_per_node"). True if that differs from the
 * name. */
bool option_underscored(const struct option_spec *s, char *to, size_t size);

#endif
