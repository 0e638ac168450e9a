/* notice.c - `muster notice`: tells all ranks of a job that it is to go by a deadline.
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/duration.h"
#include "base/err.h"
#include "cmd/ask.h"
#include "cmd/cmd.h"
#include "policy/core/notice.h"

#define PROG      "muster notice"
#define ANSWER_MS 3000u

static const char help[] =
    "usage: muster notice JOB [--in TIME]\n"
    "\n"
    "Tells every rank of a running job of yours that the job is to go: they get the\n"
    "signal of --on-notice (SIGTERM), and have until the deadline to save what they "
    "have\n"
    "and end. Then the job ends, with exit code 75 if --exit-codes=cause was given. "
    "JOB\n"
    "is a run id (--rdzv-id) or the process number of an agent on this machine.\n"
    "\n"
    "  --in TIME          the deadline, from now; 30s if not given\n"
    "  --help             this text\n";

struct notice_args {
    struct ask_args ask; /* first */
    uint64_t ms;
};

static int take_option(void *args, int letter, const char *value,
                       struct muster_error *err)
{
    struct notice_args *a = args;
    const int rc = duration_parse("--in", span_str(value), 1000, &a->ms, err);

    (void)letter;
    if (rc == 0 && (a->ms == 0 || a->ms > NOTICE_MOST_MS))
        return err_set(err, MUSTER_EINVAL, "--in=%.100s: give a time, at most 1d",
                       value);
    return rc;
}

/* One of its agents here is enough: it tells the others. */
static int tell(void *args, struct muster_error *err)
{
    struct notice_args *a = args;
    struct answers all = { 0 };
    json_t *request = NULL;
    int rc;

    if (!a->ask.job)
        return err_set(err, MUSTER_EINVAL, "which job? `muster status` lists them");
    rc = answers_local(&all, a->ask.job, err);
    if (rc == 0 &&
        !(request = json_pack("{s:s, s:I}", "ask", "notice", "ms", (json_int_t)a->ms)))
        rc = err_nomem(err);
    bool told = false;
    for (size_t i = 0; rc == 0 && i < all.count && !told; i++) {
        struct local_call call = { .name = all.list[i].name };

        rc = local_socket_ask(request, &call, 1, ANSWER_MS, err);
        told = rc == 0 && call.answer;
        if (rc == 0 && !told && i + 1 == all.count)
            rc = err_copy(err, &call.error);
        local_calls_fini(&call, 1);
    }
    if (told)
        printf("all ranks of %s are told to be gone in %" PRIu64 " s\n", a->ask.job,
               a->ms / 1000);
    json_decref(request);
    answers_fini(&all);
    return rc;
}

int cmd_notice(int argc, char **argv)
{
    static const struct option options[] = { { "in", required_argument, NULL, 'i' },
                                             ASK_OPTIONS };
    const struct ask_command cmd = { PROG, help, options, take_option, tell };
    struct notice_args args = { .ms = 30000 };

    return ask_main(&cmd, &args.ask, argc, argv);
}
