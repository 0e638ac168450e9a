/* status.c - `muster status`: shows the jobs on this machine, or one of them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "base/duration.h"
#include "base/err.h"
#include "base/mem.h"
#include "cmd/ask.h"
#include "cmd/cmd.h"
#include "status/core/put.h"
#include "status/core/status_text.h"

#define PROG "muster status"

static const char help[] =
    "usage: muster status [JOB | HOST:PORT[/JOB]] [--json] [--watch[=TIME]] "
    "[--workers]\n"
    "\n"
    "Shows what the jobs on this machine do: nodes, ranks, restarts and their causes.\n"
    "JOB is a run id (--rdzv-id), or the process number of an agent; without it, all\n"
    "jobs of yours on this machine are shown. The answer is about the whole job,\n"
    "whichever of its nodes is asked. HOST:PORT asks the store of a job on other\n"
    "machines, or a `muster store`.\n"
    "\n"
    "  --json             for programs: docs/status.schema.json\n"
    "  --watch[=TIME]     show it again every TIME (5s; a number alone: seconds; else "
    "2s)\n"
    "  --workers          also print a line for each rank\n"
    "  --url              print the address of the job's page (--status-http)\n"
    "  --token-file FILE  with HOST:PORT: file with the job's secret, if it has one;\n"
    "                     without it the secret is taken from MUSTER_TOKEN\n"
    "  --help             this text\n";

struct status_args {
    struct ask_args ask; /* first; without a job: all of them */
    bool workers, url;
    double watch_s; /* 0: once */
};

static int take_option(void *args, int letter, const char *value,
                       struct muster_error *err)
{
    struct status_args *a = args;
    uint64_t ms = 2000;
    int rc = 0;

    if (letter == 'r')
        a->workers = true;
    if (letter == 'u')
        a->url = true;
    if (letter != 'w')
        return 0;
    if (value)
        rc = duration_parse("--watch", span_str(value), 1000, &ms, err);
    if (rc == 0 && ms < 100)
        rc = err_set(err, MUSTER_EINVAL, "--watch=%s: the shortest time is 100ms",
                     value);
    a->watch_s = (double)ms / 1000;
    return rc;
}

static size_t columns(void)
{
    const char *text = getenv("COLUMNS");
    const long n = text ? strtol(text, NULL, 10) : 0;
    struct winsize w;

    if (n > 0 && n < 10000)
        return (size_t)n;
    if (isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col)
        return w.ws_col;
    return 120;
}

static bool wants_color(void)
{
    const char *term = getenv("TERM"), *no = getenv("NO_COLOR");

    return isatty(STDOUT_FILENO) && !(no && *no) && term && strcmp(term, "dumb") != 0;
}

static int print_json(const struct answers *all, const struct status_args *a)
{
    json_t *jobs = json_array(), *silent = json_array();
    json_t *out = NULL;

    for (size_t i = 0; i < all->count; i++) {
        const struct local_call *c = &all->calls[i];

        if (c->answer && answers_is_first(all, i))
            json_array_append(jobs, c->answer);
        else if (!c->answer)
            json_array_append_new(silent,
                                  json_pack("{s:i, s:s}", "pid", (int)c->name.pid,
                                            "error", c->error.text));
    }
    if (a->ask.job)
        out = json_incref(json_array_get(jobs, 0));
    else
        out = json_pack("{s:s, s:O, s:O}", "schema", "muster-status-list/1", "jobs",
                        jobs, "silent", silent);
    const int rc =
        out ? json_dumpf(out, stdout, JSON_COMPACT | JSON_REAL_PRECISION(16)) : -1;
    putchar('\n');
    json_decref(out);
    json_decref(jobs);
    json_decref(silent);
    return rc;
}

static int print_text(const struct answers *all, const struct status_args *a)
{
    const struct status_style style = { columns(), wants_color(), a->workers };
    size_t shown = 0;
    struct buf b;

    buf_init(&b, SIZE_MAX);
    for (size_t i = 0; i < all->count; i++) {
        const struct local_call *c = &all->calls[i];

        if (c->answer && answers_is_first(all, i)) {
            if (shown++)
                put_str(&b, "\n");
            status_text(&b, c->answer, &style);
        }
    }
    for (size_t i = 0; i < all->count; i++)
        if (!all->calls[i].answer) {
            put_plain(&b, span_str(all->calls[i].error.text));
            put_str(&b, "\n");
            shown++;
        }
    if (!shown)
        put_str(&b, "no job of yours runs on this machine\n");
    const int rc = buf_error(&b);
    if (rc == 0)
        (void)fwrite(buf_data(&b), 1, buf_len(&b), stdout);
    buf_fini(&b);
    return rc;
}

static int print_url(const struct answers *all, struct muster_error *err)
{
    size_t shown = 0;

    for (size_t i = 0; i < all->count; i++) {
        const char *url =
            json_string_value(json_object_get(all->calls[i].answer, "url"));

        if (url)
            shown += puts(url) >= 0;
    }
    return shown ? 0
                 : err_set(err, MUSTER_ENOENT,
                           "the job has no page\n"
                           "Start it with --status-http=ADDR:PORT to have one.");
}

static int once(const struct status_args *a, struct muster_error *err)
{
    struct answers all;
    int rc = answers_get(&all, a->ask.job, a->ask.token_file, a->url ? "url" : "status",
                         err);

    if (rc != 0)
        return rc;
    if (a->watch_s > 0 && isatty(STDOUT_FILENO))
        fputs("\033[H\033[2J", stdout);
    if (a->url)
        rc = print_url(&all, err);
    else if (a->ask.json)
        rc = print_json(&all, a);
    else
        rc = print_text(&all, a);
    answers_fini(&all);
    if (fflush(stdout) != 0 || ferror(stdout))
        return err_set(err, MUSTER_EIO, "cannot write to stdout: %s", strerror(errno));
    return rc;
}

static int show(void *args, struct muster_error *err)
{
    const struct status_args *a = args;
    int rc = once(a, err);

    while (rc == 0 && a->watch_s > 0) {
        const struct timespec t = {
            (time_t)a->watch_s, (long)((a->watch_s - (double)(time_t)a->watch_s) * 1e9)
        };

        (void)nanosleep(&t, NULL);
        if (!a->ask.json && !isatty(STDOUT_FILENO))
            putchar('\n');
        rc = once(a, err);
    }
    return rc;
}

int cmd_status(int argc, char **argv)
{
    static const struct option options[] = {
        { "watch", optional_argument, NULL, 'w' },
        { "workers", no_argument, NULL, 'r' },
        { "url", no_argument, NULL, 'u' },
        ASK_OPTIONS,
    };
    static const struct ask_command command = { PROG, help, options, take_option,
                                                show };
    struct status_args a = { .watch_s = 0 };

    return ask_main(&command, &a.ask, argc, argv);
}
