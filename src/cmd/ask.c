/* ask.c - see ask.h. */
#include "cmd/ask.h"

#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "cmd/cmd.h"
#include "status/core/status_text.h"

#define ANSWER_MS 1000u

struct span answer_run_id(const struct local_call *c)
{
    return json_span(json_object_get(c->answer, "job"), "run_id");
}

static bool is_wanted(const struct local_call *c, const char *job)
{
    char *end;
    const long pid = strtol(job, &end, 10);

    return (*end == '\0' && pid == c->name.pid) ||
           (c->answer && span_eq(answer_run_id(c), span_str(job)));
}

/* Keeps the answers of the job. An agent that does not answer is kept only if job is
 * its process number, as nothing else tells which job it belongs to. */
static void keep(struct answers *a, const char *job)
{
    size_t kept = 0;

    for (size_t i = 0; i < a->count; i++) {
        if (is_wanted(&a->calls[i], job))
            a->calls[kept++] = a->calls[i];
        else
            json_decref(a->calls[i].answer);
    }
    a->count = kept;
}

static const char *user_name(uint32_t uid)
{
    const struct passwd *pw = getpwuid((uid_t)uid);

    return pw ? pw->pw_name : "?";
}

/* Says why the job was not found: it may be another user's, or the process may not be
 * an agent. The run ids of other users' jobs cannot be seen. */
static int missing_error(const char *job, size_t silent, struct muster_error *err)
{
    struct local_name *names = NULL;
    size_t count = 0;
    uint32_t other = 0;
    bool others = false;
    char *end;
    const long pid = strtol(job, &end, 10);

    if (local_socket_list_all(&names, &count, NULL) != 0)
        count = 0;
    for (size_t i = 0; i < count; i++) {
        if (names[i].uid == (uint32_t)geteuid())
            continue;
        others = true;
        other = names[i].uid;
        if (*end == '\0' && names[i].pid == pid) {
            err_set(err, MUSTER_EACCES,
                    "process %ld is a job of user %s: only that user can ask it", pid,
                    user_name(other));
            mem_free(names);
            return MUSTER_EACCES;
        }
    }
    mem_free(names);
    err_set(err, MUSTER_ENOENT, "no job %s of yours runs on this machine", job);
    if (others)
        err_add(err,
                "; jobs of other users do (user %s, for one), but only those users "
                "can ask about them",
                user_name(other));
    err_add(err, "\n`muster status` lists your jobs.");
    if (silent)
        err_add(err,
                silent == 1 ? " %zu agent here did not answer: it may be suspended."
                            : " %zu agents here did not answer: they may be suspended.",
                silent);
    return MUSTER_ENOENT;
}

int answers_local(struct answers *a, const char *job, const char *kind,
                  struct muster_error *err)
{
    struct local_name *names = NULL;
    json_t *request = json_pack("{s:s}", "ask", kind);
    size_t silent = 0;
    int rc;

    *a = (struct answers){ 0 };
    rc =
        request ? local_socket_list(geteuid(), &names, &a->count, err) : err_nomem(err);
    if (rc == 0) {
        a->calls = mem_calloc(a->count ? a->count : 1, sizeof *a->calls);
        if (!a->calls)
            rc = err_nomem(err);
    }
    for (size_t i = 0; rc == 0 && i < a->count; i++)
        a->calls[i].name = names[i];
    if (rc == 0)
        rc = local_socket_ask(request, a->calls, a->count, ANSWER_MS, err);
    json_decref(request);
    mem_free(names);
    if (rc == 0 && job) {
        for (size_t i = 0; i < a->count; i++)
            silent += !a->calls[i].answer;
        keep(a, job);
        if (a->count == 0)
            rc = missing_error(job, silent, err);
        else if (a->count == 1 && !a->calls[0].answer)
            rc = err_copy(err, &a->calls[0].error);
    }
    if (rc != 0)
        answers_fini(a);
    return rc;
}

int answers_get(struct answers *a, const char *job, const char *token_file,
                const char *kind, struct muster_error *err)
{
    const int rc = answers_local(a, job, kind, err);
    struct remote there;

    if (rc != MUSTER_ENOENT || strcmp(kind, "status") != 0 ||
        !remote_parse(job, token_file, &there))
        return rc;
    return remote_status(&there, a, err);
}

void answers_fini(struct answers *a)
{
    if (a->calls)
        local_calls_fini(a->calls, a->count);
    mem_free(a->calls);
    *a = (struct answers){ 0 };
}

/* An answer about the whole job is better than one about a node of it. */
static bool is_better(const struct local_call *a, const struct local_call *b)
{
    return !json_object_get(a->answer, "alone") && json_object_get(b->answer, "alone");
}

/* The same run id at the same endpoint. Answers of stores have no run id, and each is
 * shown. */
static bool is_same_job(const struct local_call *a, const struct local_call *b)
{
    const struct span id = answer_run_id(a);

    return id.n && span_eq(id, answer_run_id(b)) &&
           span_eq(json_span(json_object_get(a->answer, "job"), "endpoint"),
                   json_span(json_object_get(b->answer, "job"), "endpoint"));
}

bool answers_is_first(const struct answers *a, size_t i)
{
    const struct local_call *c = &a->calls[i];
    const bool alone = json_object_get(c->answer, "alone") != NULL;

    for (size_t k = 0; k < a->count; k++) {
        const struct local_call *o = &a->calls[k];

        if (k == i || !o->answer || !is_same_job(o, c))
            continue;
        if (is_better(o, c) || (!alone && k < i && !is_better(c, o)))
            return false;
    }
    return true;
}

/* ---- the command line ---- */

static int parse(const struct ask_command *cmd, struct ask_args *a, int argc,
                 char **argv, struct muster_error *err)
{
    optind = 0;
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, ":h", cmd->options, NULL)) != -1;) {
        int rc = 0;

        if (c == 'j')
            a->json = true;
        else if (c == 'T')
            a->token_file = optarg;
        else if (c == 'h')
            a->help = true;
        else if (c == ':' || c == '?')
            rc = cmd_bad_option(c, argv[optind - 1], cmd->options, cmd->prog, err);
        else
            rc = cmd->option(a, c, optarg, err);
        if (rc != 0)
            return rc;
    }
    if (optind < argc)
        a->job = argv[optind++];
    if (optind < argc)
        return err_set(err, MUSTER_EINVAL,
                       "%s: give one job at a time; see `%s --help`", argv[optind],
                       cmd->prog);
    return 0;
}

int ask_main(const struct ask_command *cmd, struct ask_args *args, int argc,
             char **argv)
{
    struct muster_error err = { 0 };
    int code = EXIT_SUCCESS;

    if (parse(cmd, args, argc, argv, &err) != 0)
        code = 2;
    else if (args->help)
        fputs(cmd->help, stdout);
    else if (cmd->answer(args, &err) != 0)
        code = EXIT_FAILURE;
    if (code != EXIT_SUCCESS)
        cmd_error(cmd->prog, &err);
    return code;
}
