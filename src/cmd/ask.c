/* ask.c - see ask.h. */
#include "cmd/ask.h"

#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/base64.h"
#include "base/err.h"
#include "base/mem.h"
#include "cmd/cmd.h"

#define ANSWER_MS 1000u

static bool is_wanted(const struct answer *a, const char *job)
{
    char *end;
    const long pid = strtol(job, &end, 10);

    return (*end == '\0' && pid == a->name.pid) ||
           (a->told && span_eq(a->told->status.run_id, span_str(job)));
}

static void answer_fini(struct answer *a)
{
    if (!a->told)
        return;
    job_status_fini(&a->told->status);
    job_known_fini(&a->told->known);
    mem_free(a->told);
    a->told = NULL;
}

int answer_take(struct answer *a, struct span bytes, struct muster_error *err)
{
    struct told *t = mem_calloc(1, sizeof *t);
    int rc = t ? job_input_decode(bytes, &t->known, err) : err_nomem(err);

    if (rc == 0 && job_status_build(&t->status, &t->known.in) != 0)
        rc = err_nomem(err);
    a->told = t;
    if (rc != 0)
        answer_fini(a);
    return rc;
}

/* Keeps the answers of the job. An agent that does not answer is kept only if job is
 * its process number, as nothing else tells which job it belongs to. */
static void keep_job(struct answers *a, const char *job)
{
    size_t kept = 0;

    for (size_t i = 0; i < a->count; i++) {
        if (is_wanted(&a->list[i], job))
            a->list[kept++] = a->list[i];
        else
            answer_fini(&a->list[i]);
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

    if (local_socket_list(NULL, &names, &count, NULL) != 0)
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

/* Takes what an agent has sent: the bytes of its status, in base64. */
static void take_call(struct answer *a, const struct local_call *c)
{
    const struct span text =
        span_of(json_string_value(c->answer), json_string_length(c->answer));
    uint8_t *bytes = text.n ? mem_alloc(BASE64_DECODED(text.n)) : NULL;
    const int64_t n = bytes ? base64_decode(bytes, text) : -1;

    a->name = c->name;
    a->error = c->error;
    if (c->answer && (n < 0 || answer_take(a, span_of(bytes, (size_t)n), NULL) != 0))
        err_set(&a->error, MUSTER_EPROTO,
                "process %d sent an answer that cannot be read: it may be of another "
                "version of muster",
                (int)c->name.pid);
    mem_free(bytes);
}

static int ask_agents(struct answers *a, struct muster_error *err)
{
    struct local_name *names = NULL;
    struct local_call *calls = NULL;
    json_t *request = json_pack("{s:s}", "ask", "status");
    const uint32_t uid = (uint32_t)geteuid();
    size_t count = 0;
    int rc = request ? local_socket_list(&uid, &names, &count, err) : err_nomem(err);

    if (rc == 0) {
        calls = mem_calloc(count + 1, sizeof *calls);
        a->list = mem_calloc(count + 1, sizeof *a->list);
        rc = calls && a->list ? 0 : err_nomem(err);
    }
    for (size_t i = 0; rc == 0 && i < count; i++)
        calls[i].name = names[i];
    if (rc == 0)
        rc = local_socket_ask(request, calls, count, ANSWER_MS, err);
    for (; rc == 0 && a->count < count; a->count++)
        take_call(&a->list[a->count], &calls[a->count]);
    if (rc == 0)
        local_calls_fini(calls, count);
    mem_free(calls);
    mem_free(names);
    json_decref(request);
    return rc;
}

int answers_local(struct answers *a, const char *job, struct muster_error *err)
{
    size_t silent = 0;

    *a = (struct answers){ 0 };
    int rc = ask_agents(a, err);
    if (rc == 0 && job) {
        for (size_t i = 0; i < a->count; i++)
            silent += !a->list[i].told;
        keep_job(a, job);
        if (a->count == 0)
            rc = missing_error(job, silent, err);
        else if (a->count == 1 && !a->list[0].told)
            rc = err_copy(err, &a->list[0].error);
    }
    if (rc != 0)
        answers_fini(a);
    return rc;
}

int answers_get(struct answers *a, const char *job, const char *token_file,
                struct muster_error *err)
{
    const int rc = answers_local(a, job, err);
    struct remote there;

    if (rc != MUSTER_ENOENT || !remote_parse(job, token_file, &there))
        return rc;
    return remote_status(&there, a, err);
}

void answers_fini(struct answers *a)
{
    for (size_t i = 0; i < a->count; i++)
        answer_fini(&a->list[i]);
    mem_free(a->list);
    *a = (struct answers){ 0 };
}

/* The same run id at the same endpoint. Answers of stores have no run id, and each is
 * shown. */
static bool is_same_job(const struct job_status *a, const struct job_status *b)
{
    return a->run_id.n && span_eq(a->run_id, b->run_id) &&
           span_eq(a->endpoint, b->endpoint);
}

/* An answer about the whole job is better than one about a node of it; those of nodes
 * are all shown. */
const struct job_status *answers_shown(const struct answers *a, size_t i)
{
    const struct job_status *own = a->list[i].told ? &a->list[i].told->status : NULL;

    for (size_t k = 0; own && k < a->count; k++) {
        const struct told *other = k == i ? NULL : a->list[k].told;

        if (other && is_same_job(&other->status, own) && !other->status.alone.n &&
            (own->alone.n || k < i))
            return NULL;
    }
    return own;
}

/* ---- the command line ---- */

static int ask_parse(const struct ask_command *cmd, struct ask_args *a, int argc,
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

    if (ask_parse(cmd, args, argc, argv, &err) != 0)
        code = 2;
    else if (args->help)
        fputs(cmd->help, stdout);
    else if (cmd->answer(args, &err) != 0)
        code = EXIT_FAILURE;
    if (code != EXIT_SUCCESS)
        cmd_error(cmd->prog, &err);
    return code;
}
