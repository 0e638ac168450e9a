/* launch.c - muster_launch: the agent behind the command, for programs.
 *
 * A config is kept as the words of a command line, so that its options, checks and
 * defaults cannot differ from the command's. */
#include "muster/launch.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/agent.h"
#include "api/need.h"
#include "api/params_int.h"
#include "base/err.h"
#include "base/mem.h"
#include "launch/machine.h"
#include "loop/file.h"

struct muster_launch_config {
    struct text_list words; /* --name=value */
    const struct muster_registry *registry;
    struct log_writer log;
};

struct muster_launch_result {
    struct agent_result inner;
};

/* --- the config ------------------------------------------------------------------- */

int muster_launch_config_new(struct muster_launch_config **out,
                             struct muster_error *err)
{
    struct muster_launch_config *c;

    if (need(out, "out", err) < 0)
        return MUSTER_EINVAL;
    c = mem_calloc(1, sizeof *c);
    if (!c)
        return err_nomem(err);
    c->log = (struct log_writer){ .fd = -1, .copy_fd = -1 };
    *out = c;
    return 0;
}

void muster_launch_config_free(struct muster_launch_config *c)
{
    if (!c)
        return;
    text_list_fini(&c->words);
    mem_free(c);
}

int muster_launch_config_set(struct muster_launch_config *c, const char *name,
                             const char *value, struct muster_error *err)
{
    if (need(c, "config", err) < 0)
        return MUSTER_EINVAL;
    if (!name || !name[0] || name[0] == '-')
        return err_set(err, MUSTER_EINVAL,
                       "give the name of an option without leading hyphens, as in "
                       "nproc-per-node");
    char *word = value ? mem_printf("--%s=%s", name, value) : mem_printf("--%s", name);
    const int rc = word ? text_list_add(&c->words, word, strlen(word)) : MUSTER_ENOMEM;

    mem_free(word);
    return rc ? err_nomem(err) : 0;
}

void muster_launch_config_registry(struct muster_launch_config *c,
                                   const struct muster_registry *registry)
{
    if (c)
        c->registry = registry;
}

int muster_launch_config_log(struct muster_launch_config *c, const char *level,
                             struct muster_error *err)
{
    if (need(c, "config", err) < 0 || need(level, "level", err) < 0)
        return MUSTER_EINVAL;
    char *text = mem_printf("LOGLEVEL=%s", level);
    char *const envp[] = { text, NULL };
    const int rc = text ? log_writer_init(&c->log, envp, err) : err_nomem(err);

    mem_free(text);
    return rc;
}

/* --- from the config to the agent ------------------------------------------------- */

static void warn(void *ctx, enum derive_warning what, const char *text)
{
    (void)what;
    log_line(ctx, LOG_WARN, AT_LAUNCH, "%s", text);
}

/* The whole command line: options, --no-python, the command. */
static int all_words(struct text_list *out, const struct muster_launch_config *c,
                     const struct muster_entry *entry)
{
    const char *const fn[] = { entry->name ? entry->name : "function", NULL };
    const char *const *argv = entry->argv ? entry->argv : fn;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < c->words.count; i++)
        rc = text_list_add(out, c->words.items[i], strlen(c->words.items[i]));
    if (rc == 0)
        rc = text_list_add(out, "--no-python", strlen("--no-python"));
    if (rc == 0) /* The parser drops this "--" and takes what follows as it is. */
        rc = text_list_add(out, "--", 2);
    for (; rc == 0 && *argv; argv++)
        rc = text_list_add(out, *argv, strlen(*argv));
    return rc;
}

static int derive(struct launch_config *out, const struct text_list *words,
                  const struct muster_launch_config *c, struct muster_error *err)
{
    char *const no_env[] = { NULL }; /* PET_ variables are for the command */
    const struct options_input in = { words->items, words->count, no_env, false };
    struct derive_machine machine;
    struct options o;
    int rc;

    if (options_parse(&o, &in, err) != OPTIONS_FINE)
        return err->code ? err->code : MUSTER_EINVAL;
    if (o.help)
        return err_set(err, MUSTER_EINVAL, "help is not an option of a launch");
    rc = machine_real(&machine, warn, (void *)(uintptr_t)&c->log, err);
    return rc ? rc : derive_config(out, &o, false, &machine, err);
}

/* --- function workers ------------------------------------------------------------- */

static int64_t number(const char *name)
{
    const char *text = getenv(name);
    return text ? strtoll(text, NULL, 10) : 0;
}

static int run_function(void *ctx, int result_fd)
{
    const struct muster_entry *entry = ctx;
    const struct muster_worker w = {
        .rank = number("RANK"),
        .world_size = number("WORLD_SIZE"),
        .local_rank = number("LOCAL_RANK"),
        .local_world_size = number("LOCAL_WORLD_SIZE"),
        .group_rank = number("GROUP_RANK"),
        .group_world_size = number("GROUP_WORLD_SIZE"),
        .role_rank = number("ROLE_RANK"),
        .role_world_size = number("ROLE_WORLD_SIZE"),
        .restart_count = number("TORCHELASTIC_RESTART_COUNT"),
        .master_addr = getenv("MASTER_ADDR"),
        .master_port = (uint16_t)number("MASTER_PORT"),
        .result_fd = result_fd,
    };
    return entry->fn(entry->ctx, &w);
}

int muster_worker_return(const struct muster_worker *w, const void *bytes, size_t size)
{
    if (!w || need_bytes(bytes, size, "bytes", NULL) < 0)
        return MUSTER_EINVAL;
    return file_write_all(w->result_fd, span_of(bytes, size)) ? 0 : MUSTER_EIO;
}

/* --- the launch ------------------------------------------------------------------- */

/* The error quotes the verdict's first line. */
static int worker_failed(const struct agent_result *r, struct muster_error *err)
{
    static const char head[] = "muster: the job failed: ";
    const char *text = r->verdict ? r->verdict : "";

    if (strncmp(text, head, sizeof head - 1) != 0)
        return err_set(err, MUSTER_ECHILD, "a worker failed; see the report");
    text += sizeof head - 1;
    return err_set(err, MUSTER_ECHILD, "a worker failed; see the report: %.*s",
                   (int)strcspn(text, "\n"), text);
}

static int outcome(const struct agent_result *r, struct muster_error *err)
{
    switch (r->why) {
    case WHY_FAILURE:
        return worker_failed(r, err);
    case WHY_SIGNAL:
        return err_set(err, MUSTER_ESIGNAL, "ended by signal %d", r->signal);
    case WHY_NOTICE:
        return err_set(err, MUSTER_ESIGNAL, "ended after a notice (preempted)");
    case WHY_FATAL:
        err_copy(err, &r->error);
        return r->error.code ? r->error.code : MUSTER_EBUG;
    case WHY_NONE:
    case WHY_SUCCESS:
    case WHY_MEMBERSHIP:
    case WHY_PEER:
    case WHY_STUCK:
        break;
    }
    return 0;
}

static int launch(const struct launch_config *config,
                  const struct muster_launch_config *c,
                  const struct muster_entry *entry, struct muster_launch_result **out,
                  struct muster_error *err)
{
    const struct agent_opts opts = {
        .config = config,
        .envp = environ,
        .registry = c->registry ? &c->registry->inner : NULL,
        .log = &c->log,
        .fn = entry->fn ? run_function : NULL,
        .fn_ctx = (void *)(uintptr_t)entry,
        /* Like torch, only on the main thread. */
        .handle_signals = syscall(SYS_gettid) == getpid(),
        .story = true,
    };
    struct muster_launch_result *r = mem_calloc(1, sizeof *r);

    if (!r)
        return err_nomem(err);
    int rc = agent_run(&opts, &r->inner, err);
    if (rc == 0)
        rc = outcome(&r->inner, err);
    if (out && (rc == 0 || rc == MUSTER_ECHILD || rc == MUSTER_ESIGNAL))
        *out = r;
    else
        muster_launch_result_free(r);
    return rc;
}

int muster_launch(const struct muster_launch_config *c,
                  const struct muster_entry *entry, struct muster_launch_result **out,
                  struct muster_error *err)
{
    struct muster_error own = { 0 };
    struct text_list words = { 0 };
    struct launch_config config;

    err = err ? err : &own;
    if (need(c, "config", err) < 0 || need(entry, "entry", err) < 0)
        return MUSTER_EINVAL;
    if (!entry->argv == !entry->fn || (entry->argv && !entry->argv[0]))
        return err_set(err, MUSTER_EINVAL,
                       "an entry has either a command or a function");
    int rc = all_words(&words, c, entry);
    if (rc != 0) {
        text_list_fini(&words);
        return err_nomem(err);
    }
    rc = derive(&config, &words, c, err);
    if (rc == 0) {
        if (entry->fn)
            config.entry = ENTRY_FUNCTION;
        rc = launch(&config, c, entry, out, err);
        launch_config_fini(&config);
    }
    text_list_fini(&words);
    return rc;
}

size_t muster_launch_result_count(const struct muster_launch_result *r)
{
    return r ? r->inner.result_count : 0;
}

int64_t muster_launch_result_rank(const struct muster_launch_result *r, size_t i)
{
    return r && i < r->inner.result_count ? r->inner.results[i].rank : -1;
}

const void *muster_launch_result_bytes(const struct muster_launch_result *r, size_t i,
                                       size_t *size)
{
    const bool there = r && i < r->inner.result_count;

    if (size)
        *size = there ? r->inner.results[i].count : 0;
    return there ? r->inner.results[i].bytes : NULL;
}

const char *muster_launch_verdict(const struct muster_launch_result *r)
{
    return r && r->inner.verdict ? r->inner.verdict : "";
}

bool muster_launch_failure(const struct muster_launch_result *r,
                           struct muster_failure *out)
{
    if (!r || !r->inner.failure || !out)
        return false;
    *out = *r->inner.failure;
    return true;
}

const char *muster_launch_story(const struct muster_launch_result *r)
{
    return r && r->inner.story ? r->inner.story : "";
}

const char *muster_launch_report(const struct muster_launch_result *r)
{
    return r && r->inner.failure_box ? r->inner.failure_box : "";
}

void muster_launch_result_free(struct muster_launch_result *r)
{
    if (!r)
        return;
    agent_result_fini(&r->inner);
    mem_free(r);
}
