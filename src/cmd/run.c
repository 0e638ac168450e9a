/* run.c - `muster run` and `muster launch`: from the command line to the agent. */
#include "agent/agent.h"
#include "agent/core/failure_report.h"
#include "base/err.h"
#include "base/escape.h"
#include "base/mem.h"
#include "cmd/cmd.h"
#include "launch/core/completion.h"
#include "launch/core/derive.h"
#include "launch/core/help.h"
#include "launch/core/rank_order.h"
#include "launch/core/slurm.h"
#include "launch/machine.h"
#include "logs/log_writer.h"
#include "loop/file.h"
#include "policy/notify.h"
#include "process/find_python.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define EXIT_USAGE 2

static void warn(void *ctx, enum derive_warning what, const char *text)
{
    const struct log_writer *log = ctx;
    static const enum log_place places[] = {
        [DERIVE_WARN_OMP] = AT_OMP,
        [DERIVE_WARN_MASTER_ADDR] = AT_MASTER_ADDR,
        [DERIVE_WARN_NODE_RANK] = AT_NODE_RANK,
        [DERIVE_WARN_RUN_ID] = AT_RUN_ID,
        [DERIVE_WARN_CONF] = AT_RUN,
        [DERIVE_WARN_ENDPOINT] = AT_ENDPOINT,
    };

    /* torch's words are for whoever greps for them; see advise_on_threads(). */
    if (what != DERIVE_WARN_OMP || !log->screen->brief)
        log_line(&log->log, LOG_WARN, places[what], "%s", text);
}

/* On a terminal, says that each worker has one thread only if that leaves CPUs idle and
 * there is nothing more important to say. */
static void advise_on_threads(const struct log_writer *log,
                              const struct launch_config *c)
{
    const long cpus = sysconf(_SC_NPROCESSORS_ONLN);

    if (c->set_omp && log->screen->brief && !log->screen->advices &&
        cpus / 2 >= c->nproc)
        log_line(&log->log, LOG_WARN, AT_OMP,
                 "each of %lld workers has one thread on %ld CPUs: OMP_NUM_THREADS=%ld "
                 "gives them all",
                 (long long)c->nproc, cpus, cpus / (long)c->nproc);
}

/* --print-config starts no workers, so their environment needs no warning. */
static void warn_printing(void *ctx, enum derive_warning what, const char *text)
{
    if (what != DERIVE_WARN_OMP)
        warn(ctx, what, text);
}

/* The width that argparse uses: COLUMNS, else 80. */
static size_t columns(void)
{
    const char *text = getenv("COLUMNS");
    const long n = text ? strtol(text, NULL, 10) : 0;

    return n > 0 && n < 1000 ? (size_t)n : 80;
}

/* Prints the buffer, unless rc says that filling it failed, and frees it. */
static int run_print(struct buf *b, int rc)
{
    if (rc == 0 && fwrite(buf_data(b), 1, buf_len(b), stdout) != buf_len(b))
        rc = MUSTER_EIO;
    buf_fini(b);
    return rc || fflush(stdout) ? EXIT_FAILURE : EXIT_SUCCESS;
}

static int print_help(const char *prog, bool launch, bool whole)
{
    struct buf b;

    buf_init(&b, SIZE_MAX);
    return run_print(&b, (whole ? help_text : help_short)(&b, prog, columns(), launch));
}

/* Appends the names of all commands, separated by blanks. */
static int command_names(struct buf *out)
{
    int rc = 0;

    for (const struct command *c = commands; rc == 0 && c->name; c++)
        rc = buf_printf(out, "%s%s", c == commands ? "" : " ", c->name);
    return rc ? rc : buf_u8(out, 0);
}

static int print_completion(const char *shell)
{
    struct buf names, script;
    int rc;

    buf_init(&names, SIZE_MAX);
    buf_init(&script, SIZE_MAX);
    rc = command_names(&names);
    if (rc == 0)
        rc = completion_script(&script, shell, (const char *)buf_data(&names));
    buf_fini(&names);
    return run_print(&script, rc);
}

/* Fills in the interpreter and whether reports carry its name. As with torchrun, a
 * PYTHON_EXEC that names the interpreter that we would choose changes nothing. */
static int settle_python(struct launch_config *c, struct muster_error *err)
{
    struct muster_error none;
    char *found = NULL;
    int rc;

    if (c->entry == ENTRY_EXEC)
        return 0;
    rc = python_find(environ, NULL, &found, c->python ? &none : err);
    if (!c->python) {
        c->python = found;
        if (rc == 0)
            python_behind_shim(environ, &c->python);
        return rc;
    }
    c->python_is_custom = rc != 0 || strcmp(found, c->python) != 0;
    mem_free(found);
    if (*c->python) {
        python_behind_shim(environ, &c->python);
        return 0;
    }
    return err_set(err, MUSTER_EINVAL,
                   "PYTHON_EXEC is empty\n"
                   "Unset it to have muster find a Python, or set it to one.");
}

/* The file where our parent process looks for our error. As in torch, the old launcher
 * has no such file. */
static const char *own_error_file(bool launch)
{
    const char *path = getenv("TORCHELASTIC_ERROR_FILE");

    return launch || !path || !*path ? NULL : path;
}

/* Prints why the job could not begin, and writes it where our parent looks. */
static int run_give_up(const char *prog, bool launch, const struct muster_error *err)
{
    const char *path = own_error_file(launch);
    FILE *f = path ? fopen(path, "we") : NULL;
    struct muster_error first = *err;
    struct buf b;

    first.text[strcspn(first.text, "\n")] = '\0';
    buf_init(&b, SIZE_MAX);
    if (f && error_file_print(&b, first.text, err->text, (int64_t)time(NULL)) == 0)
        (void)fwrite(buf_data(&b), 1, buf_len(&b), f);
    buf_fini(&b);
    if (path && (!f || fclose(f) != 0))
        fprintf(stderr, "%s: TORCHELASTIC_ERROR_FILE=%s: %s\n", prog, path,
                strerror(errno));
    cmd_error(prog, err);
    return EXIT_FAILURE;
}

/* Kubernetes shows its first 4096 bytes to whoever asks why the pod has ended. */
static void tell_pod(const char *verdict)
{
    const int fd = verdict && getpid() == 1
                       ? open("/dev/termination-log", O_WRONLY | O_CLOEXEC | O_NOCTTY)
                       : -1;

    if (fd < 0)
        return;
    (void)file_write_all(fd, span_of(verdict, MIN_OF(strlen(verdict), 4096)));
    close(fd);
}

struct failure_style {
    bool silent; /* elastic_launch raises it. */
    bool brief;
};

static void print_failure(void *ctx, const char *box, const char *verdict)
{
    const struct failure_style *style = ctx;

    if (style->silent)
        return;
    if (!(style->brief && verdict))
        fputs(box ? box : "", stderr);
    fputs(verdict ? verdict : "", stderr); /* Last, where people look first. */
}

/* Runs the agent to its end and prints on stderr how it ended, worded as torchrun words
 * it. Returns 0 with *exit_code set, or an error if the agent could not begin.
 * error_file is where our parent process looks for our error, or NULL. */
static int run_agent(const char *prog, const struct launch_config *c,
                     const struct log_writer *log, const char *error_file,
                     int *exit_code, struct muster_error *err)
{
    struct failure_style style = { .silent = c->title != NULL,
                                   .brief = log->screen && log->screen->brief };
    const struct agent_opts opts = {
        .config = c,
        .envp = environ,
        .log = log,
        .handle_signals = true,
        .own_process = true,
        .reap_orphans = getpid() == 1,
        .error_file = error_file,
        .on_failure = print_failure,
        .ctx = &style,
        .notify_fd = c->notify.count ? notify_start(&c->notify) : -1,
    };
    struct agent_result r;
    char clean[2 * sizeof r.error.text];

    if (strcmp(prog, "torchrun") == 0) /* People find its agents by this name. */
        prctl(PR_SET_NAME, "pt_elastic", 0, 0, 0);
    const int rc = agent_run(&opts, &r, err);
    if (rc != 0)
        return rc;
    (void)signal(SIGPIPE, SIG_IGN); /* A closed stderr must not change the exit code. */
    switch (r.why) {
    case WHY_SIGNAL:
        if (style.brief) /* "stopped by SIGINT" was said when it came. */
            break;
        fprintf(stderr,
                "torch.distributed.elastic.multiprocessing.api.SignalException: "
                "Process %d got signal: %d\n",
                (int)getpid(), r.signal);
        break;
    case WHY_FATAL:
        if (r.exit_code == 0) /* This node was a spare and was not needed. */
            fprintf(stderr, "%s: %s\n", prog,
                    escape_text(clean, sizeof clean, span_str(r.error.text)));
        else
            cmd_error(prog, &r.error);
        fputs(r.verdict ? r.verdict : "", stderr);
        break;
    case WHY_NONE:
    case WHY_NOTICE:  /* It was said when it came. */
    case WHY_FAILURE: /* print_failure */
    case WHY_SUCCESS:
    case WHY_MEMBERSHIP:
    case WHY_PEER:
    case WHY_STUCK:
        break;
    }
    tell_pod(r.verdict);
    *exit_code = r.exit_code;
    agent_result_fini(&r);
    return 0;
}

static int run_start(const char *prog, const struct options *o, bool launch,
                     const struct log_writer *log, int *exit_code,
                     struct muster_error *err)
{
    struct derive_machine machine;
    struct launch_config c;
    int rc = machine_real(&machine, o->print_config ? warn_printing : warn,
                          (void *)(uintptr_t)log, err);

    if (rc)
        return rc;
    rc = derive_config(&c, o, launch, &machine, err);
    if (rc)
        return rc;
    rc = settle_python(&c, err);
    if (rc == 0 && o->print_config)
        rc = print_config(o, &c, launch, err);
    if (rc == 0 && !o->print_config)
        advise_on_threads(log, &c);
    if (rc == 0 && !o->print_config)
        rc = run_agent(prog, &c, log, own_error_file(launch), exit_code, err);
    launch_config_fini(&c);
    return rc;
}

static int run_command(const char *prog, int argc, char **argv, bool launch)
{
    const struct options_input in = { argv + 1, (size_t)(argc - 1), environ, launch };
    struct muster_error err = { 0 };
    struct slurm_texts slurm;     /* o borrows from it, */
    struct rank_order_text order; /* and from this */
    struct log_screen screen;
    struct log_writer log;
    struct options o;
    enum options_fault fault;
    int exit_code = EXIT_SUCCESS;

    if (log_writer_init(&log, environ, &err))
        return run_give_up(prog, launch, &err);
    log_writer_on_screen(&log, &screen, environ);
    fault = options_parse(&o, &in, &err);
    if (fault == OPTIONS_USAGE) {
        err_add(&err, "\nusage: %s [options] training_script ... (%s -h says more)",
                prog, prog);
        cmd_error(prog, &err);
        return EXIT_USAGE;
    }
    if (fault)
        return run_give_up(prog, launch, &err);
    log_writer_set_brief(&log, o.failure);
    if (o.help)
        return print_help(prog, launch, o.help_whole);
    if (o.print_completion)
        return print_completion(o.print_completion);
    const int placed = slurm_applies(&o, environ)
                           ? slurm_apply(&o, environ, &slurm, &err)
                           : machine_scheduler(&o, &slurm, &err);
    if (placed == 0 && rank_order_apply(&o, environ, &order, &err) == 0 &&
        run_start(prog, &o, launch, &log, &exit_code, &err) == 0)
        return exit_code;
    return run_give_up(prog, launch, &err);
}

int cmd_run(int argc, char **argv)
{
    const char *slash = strrchr(argv[0], '/');
    const char *name = slash ? slash + 1 : argv[0];

    return run_command(strcmp(name, "run") == 0 ? "muster run" : name, argc, argv,
                       false);
}

int cmd_launch(int argc, char **argv)
{
    return run_command("muster launch", argc, argv, true);
}

int cmd_completion(int argc, char **argv)
{
    static const char *const shells[] = { "bash", "zsh", "fish", "tcsh" };
    const bool help = argc == 2 && strcmp(argv[1], "--help") == 0;

    for (size_t i = 0; argc == 2 && i < ARRAY_LEN(shells); i++)
        if (strcmp(argv[1], shells[i]) == 0)
            return print_completion(argv[1]);
    fputs("usage: muster completion " COMPLETION_SHELLS "\n", help ? stdout : stderr);
    return help ? EXIT_SUCCESS : EXIT_USAGE;
}

int cmd_man(void)
{
    struct buf b;

    buf_init(&b, SIZE_MAX);
    return run_print(&b, help_man_page(&b));
}
