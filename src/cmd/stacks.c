/* stacks.c - `muster stacks`: where each rank of a running job is now. Equal stacks are
 * shown once. It asks an agent of the job on this machine, which asks the others. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/duration.h"
#include "base/err.h"
#include "base/mem.h"
#include "cmd/ask.h"
#include "cmd/cmd.h"
#include "stacks/core/findings.h"
#include "stacks/service.h"

#define PROG      "muster stacks"
#define ANSWER_MS 3000u /* beyond the reading of the stacks themselves */

static const char help[] =
    "usage: muster stacks [JOB | HOST:PORT[/JOB]] [--rank N] [--wait TIME] [--json]\n"
    "\n"
    "Shows where each rank of a running job is now: Python and native frames, without\n"
    "a change to the script. Equal stacks are shown once, those that differ first. "
    "JOB\n"
    "is a run id (--rdzv-id) or the process number of an agent; it may be left out if\n"
    "only one job of yours runs on this machine. All nodes of the job are asked.\n"
    "HOST:PORT is the store of a job on other machines.\n"
    "\n"
    "  --rank N           only this rank, with all its threads and processes\n"
    "  --wait TIME        how long reading may take on each node, at most 60s; 10s if\n"
    "                     not given. It ends earlier when all has been read\n"
    "  --json             for programs\n"
    "  --token-file FILE  with HOST:PORT: file with the job's secret, if it has one;\n"
    "                     without it the secret is taken from MUSTER_TOKEN\n"
    "  --help             this text\n"
    "\n"
    "Python frames need py-spy, in PATH or beside the workers' Python, or named by\n"
    "MUSTER_PY_SPY; native ones need libdw (Debian: libdw1). Reading does not stop a\n"
    "worker.\n";

struct stacks_args {
    struct ask_args ask; /* first; without a job: the only one here */
    int64_t rank;        /* -1: all */
    uint64_t wait_ms;    /* for each node's reading */
};

static int take_wait(struct stacks_args *a, const char *value, struct muster_error *err)
{
    const int rc = duration_parse("--wait", span_str(value), 1000, &a->wait_ms, err);

    if (rc < 0)
        return rc;
    if (a->wait_ms < 100 || a->wait_ms > STACKS_WAIT_MOST_MS)
        return err_set(err, MUSTER_EINVAL,
                       "--wait=%.100s: give a time from 100ms to 60s, as in 20s",
                       value);
    return 0;
}

static int take_option(void *args, int letter, const char *value,
                       struct muster_error *err)
{
    struct stacks_args *a = args;
    char *end;

    if (letter == 'w')
        return take_wait(a, value, err);
    errno = 0;
    a->rank = strtoll(value, &end, 10);
    if (errno || end == value || *end || a->rank < 0)
        return err_set(err, MUSTER_EINVAL, "--rank=%s: give a global rank, 0 or more",
                       value);
    return 0;
}

/* --- which agent ------------------------------------------------------------------ */

/* Keeps the agents that answered. They must all be of one job, as the user may not have
 * named it. */
static int choose_agents(struct answers *all, const char *job, struct muster_error *err)
{
    size_t kept = 0, silent = 0;

    for (size_t i = 0; i < all->count; i++) {
        struct answer *a = &all->list[i];

        if (!a->told) {
            silent++;
            continue;
        }
        const struct span x = all->list[0].told ? all->list[0].told->status.run_id
                                                : span_of(NULL, 0),
                          y = a->told->status.run_id;
        if (kept > 0 && !span_eq(x, y))
            return err_set(err, MUSTER_EINVAL,
                           "several jobs of yours run here (%.*s, %.*s): name one\n"
                           "`muster status` lists them.",
                           (int)MIN_OF(x.n, (size_t)100), (const char *)x.p,
                           (int)MIN_OF(y.n, (size_t)100), (const char *)y.p);
        if (kept != i) {
            all->list[kept] = *a;
            a->told = NULL;
        }
        kept++;
    }
    if (kept > 0) {
        all->count = kept;
        return 0;
    }
    if (silent)
        return err_set(err, MUSTER_ETIMEDOUT,
                       "%zu agents here do not answer: they may be suspended", silent);
    return err_set(err, MUSTER_ENOENT, "no job%s%s of yours runs on this machine",
                   job ? " " : "", job ? job : "");
}

static bool knows(const struct stack_sample *s, int64_t rank)
{
    for (size_t i = 0; i < s->count; i++)
        if (s->ranks[i].rank == rank)
            return true;
    return false;
}

/* Asks one agent, and adds its answer unless all of its ranks are known already. */
static int ask_one(const struct local_name *name, uint64_t wait_ms,
                   struct stack_sample *sample, struct muster_error *err)
{
    struct local_call call = { .name = *name };
    struct stack_sample seen = { 0 };
    json_t *request =
        json_pack("{s:s, s:I}", "ask", "stacks", "wait_ms", (json_int_t)wait_ms);
    int rc = request ? local_socket_ask(request, &call, 1, wait_ms + ANSWER_MS, err)
                     : err_nomem(err);

    if (rc == 0 && !call.answer)
        rc = err_copy(err, &call.error);
    char *text = rc == 0 ? json_dumps(call.answer, JSON_COMPACT) : NULL;
    if (rc == 0)
        rc = text ? stack_sample_parse(&seen, span_str(text), err) : err_nomem(err);
    bool more = sample->count == 0;
    for (size_t i = 0; !more && i < seen.count; i++)
        more = !knows(sample, seen.ranks[i].rank);
    if (rc == 0 && more)
        rc = stack_sample_parse(sample, span_str(text), err);
    free(text);
    stack_sample_fini(&seen);
    json_decref(request);
    local_calls_fini(&call, 1);
    return rc;
}

/* One agent answers for the whole job, unless it says that it answers for its own node
 * alone: then the other agents on this machine are asked, too. */
static int stacks_get(const struct stacks_args *a, struct stack_sample *sample,
                      struct muster_error *err)
{
    struct answers all;
    struct muster_error first = { 0 };
    struct remote there;
    int rc = answers_local(&all, a->ask.job, err);
    size_t good = 0;

    if (rc == MUSTER_ENOENT && remote_parse(a->ask.job, a->ask.token_file, &there))
        return remote_stacks(&there, a->wait_ms, sample, err);
    if (rc != 0)
        return rc;
    rc = choose_agents(&all, a->ask.job, err);
    for (size_t i = 0; rc == 0 && i < all.count; i++) {
        bool alone = i == 0;

        for (size_t k = 0; k < sample->note_count; k++)
            alone = alone || strstr(sample->notes[k], "this node alone") != NULL;
        if (!alone)
            break;
        struct muster_error why;
        if (ask_one(&all.list[i].name, a->wait_ms, sample, &why) == 0)
            good++;
        else if (first.code == 0)
            first = why;
    }
    if (rc == 0 && good == 0)
        rc = err_copy(err, &first);
    answers_fini(&all);
    stack_sample_sort(sample);
    return rc;
}

/* --- output ----------------------------------------------------------------------- */

static void keep_rank(struct stack_sample *s, int64_t rank)
{
    size_t n = 0;

    for (size_t i = 0; i < s->count; i++)
        if (s->ranks[i].rank == rank)
            s->ranks[n++] = s->ranks[i];
    s->count = n;
}

static int stacks_print(const struct stacks_args *a, struct stack_sample *s,
                        struct buf *b)
{
    struct stack_findings f;

    if (a->rank >= 0)
        keep_rank(s, a->rank);
    if (stack_findings_make(&f, s) != 0)
        return MUSTER_ENOMEM;
    if (a->ask.json) {
        struct buf seen;

        buf_init(&seen, SIZE_MAX);
        buf_append_str(b, "{\"schema\": \"muster-stacks/1\", ");
        (void)stack_findings_json(b, &f);
        buf_append_str(b, ", \"seen\": ");
        if (stack_sample_print(&seen, s, NULL) == 0)
            (void)buf_append_span(b, buf_span(&seen));
        buf_append_str(b, "}\n");
        buf_fini(&seen);
    } else if (a->rank >= 0) {
        for (size_t i = 0; i < s->count; i++)
            (void)stack_rank_print(b, &s->ranks[i]);
        for (size_t i = 0; i < s->note_count; i++)
            buf_printf(b, "note: %s\n", s->notes[i]);
    } else {
        (void)stack_findings_print(b, &f, s);
    }
    stack_findings_fini(&f);
    return buf_error(b);
}

static int stacks_show(void *args, struct muster_error *err)
{
    const struct stacks_args *a = args;
    struct stack_sample sample = { 0 };
    struct buf b;
    int rc = stacks_get(a, &sample, err);

    buf_init(&b, SIZE_MAX);
    if (rc == 0 && a->rank >= 0 && !knows(&sample, a->rank))
        rc = err_set(err, MUSTER_ENOENT,
                     "rank %" PRId64 " is not running now; %zu ranks are", a->rank,
                     sample.count);
    if (rc == 0 && stacks_print(a, &sample, &b) != 0)
        rc = err_nomem(err);
    if (rc == 0 && (fwrite(buf_data(&b), 1, buf_len(&b), stdout) != buf_len(&b) ||
                    fflush(stdout) != 0))
        rc = err_set(err, MUSTER_EIO, "cannot write to stdout: %s", strerror(errno));
    buf_fini(&b);
    stack_sample_fini(&sample);
    return rc;
}

int cmd_stacks(int argc, char **argv)
{
    static const struct option options[] = {
        { "rank", required_argument, NULL, 'r' },
        { "wait", required_argument, NULL, 'w' },
        ASK_OPTIONS,
    };
    static const struct ask_command command = { PROG, help, options, take_option,
                                                stacks_show };
    struct stacks_args a = { .rank = -1, .wait_ms = STACKS_WAIT_MS };

    return ask_main(&command, &a.ask, argc, argv);
}
