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
#include "cmd/ask.h"
#include "cmd/cmd.h"
#include "status/core/put.h"
#include "status/core/status_text.h"

#define PROG   "muster status"
#define URL_MS 1000u

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

static void put_jobs(struct buf *b, const struct answers *all, bool only_one)
{
    size_t shown = 0;

    for (size_t i = 0; i < all->count; i++) {
        const struct job_status *j = answers_shown(all, i);

        if (!j || (only_one && shown))
            continue;
        put_str(b, shown++ ? ", " : "");
        job_status_json(b, j, 0, true);
    }
}

static void put_list(struct buf *b, const struct answers *all)
{
    size_t silent = 0;

    put_str(b, "{\"schema\": \"muster-status-list/1\", \"jobs\": [");
    put_jobs(b, all, false);
    put_str(b, "], \"silent\": [");
    for (size_t i = 0; i < all->count; i++) {
        const struct answer *a = &all->list[i];

        if (a->told)
            continue;
        (void)buf_printf(b, "%s{\"pid\": %d, \"error\": ", silent++ ? ", " : "",
                         (int)a->name.pid);
        put_json(b, span_str(a->error.text));
        put_str(b, "}");
    }
    put_str(b, "]}");
}

static void put_answers(struct buf *b, const struct answers *all, bool workers)
{
    const struct status_style style = { columns(), wants_color(), workers };
    size_t shown = 0;

    for (size_t i = 0; i < all->count; i++) {
        const struct job_status *j = answers_shown(all, i);

        if (!j)
            continue;
        put_str(b, shown++ ? "\n" : "");
        status_text(b, j, &style);
    }
    for (size_t i = 0; i < all->count; i++) {
        if (all->list[i].told)
            continue;
        put_plain(b, span_str(all->list[i].error.text));
        put_str(b, "\n");
        shown++;
    }
    if (!shown)
        put_str(b, "no job of yours runs on this machine\n");
}

/* Asks each agent of the job for the address of its page. */
static int put_urls(struct buf *b, const struct answers *all, struct muster_error *err)
{
    json_t *ask = json_pack("{s:s}", "ask", "url");

    for (size_t i = 0; ask && i < all->count; i++) {
        struct local_call call = { .name = all->list[i].name };
        const char *url;

        if (!all->list[i].told || !call.name.pid ||
            local_socket_ask(ask, &call, 1, URL_MS, err) != 0)
            continue;
        url = json_string_value(json_object_get(call.answer, "url"));
        if (url)
            (void)buf_printf(b, "%s\n", url);
        local_calls_fini(&call, 1);
    }
    json_decref(ask);
    return buf_len(b) ? 0
                      : err_set(err, MUSTER_ENOENT,
                                "the job has no page\n"
                                "Start it with --status-http=ADDR:PORT to have one.");
}

static int status_once(const struct status_args *a, struct muster_error *err)
{
    struct answers all;
    struct buf b;
    int rc = answers_get(&all, a->ask.job, a->ask.token_file, err);

    if (rc != 0)
        return rc;
    buf_init(&b, SIZE_MAX);
    if (a->watch_s > 0 && isatty(STDOUT_FILENO))
        put_str(&b, "\033[H\033[2J");
    if (a->url) {
        rc = put_urls(&b, &all, err);
    } else if (a->ask.json) {
        if (a->ask.job)
            put_jobs(&b, &all, true);
        else
            put_list(&b, &all);
        put_str(&b, "\n");
    } else {
        put_answers(&b, &all, a->workers);
    }
    if (rc == 0 && buf_error(&b))
        rc = err_nomem(err);
    if (rc == 0)
        (void)fwrite(buf_data(&b), 1, buf_len(&b), stdout);
    buf_fini(&b);
    answers_fini(&all);
    if (fflush(stdout) != 0 || ferror(stdout))
        return err_set(err, MUSTER_EIO, "cannot write to stdout: %s", strerror(errno));
    return rc;
}

static int status_show(void *args, struct muster_error *err)
{
    const struct status_args *a = args;
    int rc = status_once(a, err);

    while (rc == 0 && a->watch_s > 0) {
        const struct timespec t = {
            (time_t)a->watch_s, (long)((a->watch_s - (double)(time_t)a->watch_s) * 1e9)
        };

        (void)nanosleep(&t, NULL);
        if (!a->ask.json && !isatty(STDOUT_FILENO))
            putchar('\n');
        rc = status_once(a, err);
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
                                                status_show };
    struct status_args a = { .watch_s = 0 };

    return ask_main(&command, &a.ask, argc, argv);
}
