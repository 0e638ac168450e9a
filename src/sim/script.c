/* script.c - a case: commands, and the transcript that they must give.
 *
 *   # a remark
 *   > group min=2 max=3 last_call=5      seconds; also join, work, restarts, policy,
 *                                        backoff, budget (as the options), delay
 *                                        (milliseconds, one way), store=keys (as
 * torch's: it has no coordinator; otherwise it is ours) > node a ours or torch, or
 * fallback (it has hosted=0) > at 1.5 a start                     kill, leave
 * (SIGTERM), fail (a worker), stop 20, cut 5, skew -20; store crash, store back > until
 * 60
 *
 * All other lines are the transcript: who joins which round, what it hears, how it
 * ends. They are not read, but written anew. Times are in tenths of a second, and
 * within one the lines are sorted by name, so that a transcript says what happens and
 * does not change with every message of a driver. */
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "sim/job.h"

#define SCRIPT_NODES 16
#define TENTH        (OS_SECOND / 10)

struct line {
    char who[16];
    char text[200];
};

static struct script {
    bool begun;
    struct buf *out; /* NULL: no case is played */
    uint64_t tenth;  /* of the lines below */
    struct line lines[100];
    size_t count;
} script;

static void script_flush(void)
{
    struct os_process *current = os.current;
    struct line *l = script.lines;

    for (size_t i = 0; i < script.count; i++) /* Lines of one name keep their order. */
        for (size_t k = i; k > 0 && strcmp(l[k - 1].who, l[k].who) > 0; k--) {
            const struct line swap = l[k];

            l[k] = l[k - 1];
            l[k - 1] = swap;
        }
    os.current = NULL; /* The transcript is the simulator's. */
    for (size_t i = 0; i < script.count; i++)
        (void)buf_printf(script.out, "%7.1f  %-6s %s\n", (double)script.tenth / 10,
                         script.lines[i].who, script.lines[i].text);
    script.count = 0;
    os.current = current;
}

void job_tell(const char *who, const char *fmt, ...)
{
    char text[200];
    struct line *l;
    va_list ap;

    if (!script.out && !os.loud)
        return;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!script.out) {
        os_log(who, "%s", text);
        return;
    }
    if (script.tenth != os.t / TENTH || script.count == ARRAY_LEN(script.lines))
        script_flush();
    script.tenth = os.t / TENTH;
    l = &script.lines[script.count++];
    (void)snprintf(l->who, sizeof l->who, "%s", who);
    memcpy(l->text, text, sizeof l->text);
}

static int bad(const char *line)
{
    (void)buf_printf(script.out, "  cannot understand: %s\n", line);
    return MUSTER_EINVAL;
}

static int on_group(char *args)
{
    struct job_settings *s = &the_job->set;
    char *save = NULL;

    for (char *w = strtok_r(args, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        char *eq = strchr(w, '=');
        const double v = eq ? strtod(eq + 1, NULL) : 0;

        if (!eq)
            return bad(w);
        *eq = '\0';
        if (strcmp(w, "min") == 0)
            s->min_nodes = (int64_t)v;
        else if (strcmp(w, "max") == 0)
            s->max_nodes = (int64_t)v;
        else if (strcmp(w, "last_call") == 0)
            s->last_call_s = (uint64_t)v;
        else if (strcmp(w, "join") == 0)
            s->join_s = (uint64_t)v;
        else if (strcmp(w, "work") == 0)
            s->work_us = (uint64_t)(v * 1e6);
        else if (strcmp(w, "restarts") == 0)
            s->max_restarts = (int64_t)v;
        else if (strcmp(w, "policy") == 0)
            (void)snprintf(s->policy, sizeof s->policy, "%s", eq + 1);
        else if (strcmp(w, "backoff") == 0)
            (void)snprintf(s->backoff, sizeof s->backoff, "%s", eq + 1);
        else if (strcmp(w, "budget") == 0)
            (void)snprintf(s->budget, sizeof s->budget, "%s", eq + 1);
        else if (strcmp(w, "delay") == 0)
            os.delay_us = (uint64_t)(v * 1000);
        else if (strcmp(w, "store") == 0 && strcmp(eq + 1, "keys") == 0)
            s->plain = true;
        else
            return bad(w);
    }
    return 0;
}

static int on_node(const char *args)
{
    static const char *const kinds[] = { "ours", "fallback", "torch" };
    char name[16], kind[16];

    if (sscanf(args, "%15s %15s", name, kind) != 2 ||
        the_job->set.nodes == SCRIPT_NODES)
        return bad(args);
    for (unsigned k = 0; k < ARRAY_LEN(kinds); k++) {
        if (strcmp(kind, kinds[k]) != 0)
            continue;
        (void)job_add_node((enum job_kind)k, name);
        /* torchrun's nodes remember the first address of a store that agents serve. */
        the_job->set.share = the_job->torchruns == 0;
        return 0;
    }
    return bad(args);
}

static int on_action(struct job_node *n, const char *what, double arg)
{
    const uint64_t until_t = os.t + (uint64_t)(arg * 1e6);

    if (strcmp(what, "start") == 0)
        job_start_node(n, 0);
    else if (strcmp(what, "skew") == 0)
        n->machine->wall_us = (int64_t)(arg * 1e6);
    else if (!n->agent)
        return bad(what);
    else if (strcmp(what, "kill") == 0)
        os_signal(n->agent, SIGKILL);
    else if (strcmp(what, "leave") == 0)
        os_signal(n->agent, SIGTERM);
    else if (strcmp(what, "fail") == 0)
        job_fail_worker(n);
    else if (strcmp(what, "stop") == 0)
        os_stop_until(n->agent, until_t);
    else if (strcmp(what, "cut") == 0)
        job_cut_node(n, true, until_t);
    else
        return bad(what);
    return 0;
}

static void run_until(double seconds)
{
    if (!script.begun)
        job_start_store(NULL, 0);
    script.begun = true;
    (void)os_run((uint64_t)(seconds * 1e6 + 0.5));
    script_flush();
}

static int on_at(const char *args)
{
    char who[16], what[16];
    double t, arg = 0;

    if (sscanf(args, "%lf %15s %15s %lf", &t, who, what, &arg) < 3)
        return bad(args);
    if (strcmp(who, "store") == 0 && strcmp(what, "crash") == 0)
        job_stop_store();
    else if (strcmp(who, "store") == 0 && strcmp(what, "back") == 0)
        job_start_store(NULL, 0);
    for (size_t i = 0; i < the_job->set.nodes; i++) {
        if (strcmp(the_job->nodes[i].machine->name, who) == 0)
            return on_action(&the_job->nodes[i], what, arg);
    }
    return strcmp(who, "store") == 0 ? 0 : bad(args);
}

static int on_command(const char *line)
{
    char copy[200], *args;

    (void)snprintf(copy, sizeof copy, "%s", line + 2);
    args = strchr(copy, ' ');
    if (!args)
        return bad(line);
    *args++ = '\0';
    if (strcmp(copy, "at") == 0 || strcmp(copy, "until") == 0)
        run_until(strtod(args, NULL));
    (void)buf_printf(script.out, "%s\n", line);
    if (strcmp(copy, "group") == 0)
        return on_group(args);
    if (strcmp(copy, "node") == 0)
        return on_node(args);
    if (strcmp(copy, "at") == 0)
        return on_at(args);
    return strcmp(copy, "until") == 0 ? 0 : bad(line);
}

int script_play(const char *text, struct buf *out)
{
    int rc = 0;

    job_begin(1, false, SCRIPT_NODES);
    script = (struct script){ .out = out };
    the_job->set.nodes = 0;
    the_job->set.store_apart = true;
    os.delay_us = OS_MS;
    os.steady = true;
    while (*text && rc == 0) {
        const size_t n = strcspn(text, "\n");
        char *line = mem_strndup(text, n);

        if (line[0] == '>' && line[1] == ' ')
            rc = on_command(line);
        else if (line[0] == '#' || line[0] == '\0')
            (void)buf_printf(out, "%s\n", line);
        mem_free(line);
        text += n + (text[n] == '\n');
    }
    if (os.fail[0]) {
        (void)buf_printf(out, "  BROKEN PROMISE %s\n", os.fail);
        rc = MUSTER_EBUG;
    }
    script.out = NULL;
    job_end();
    return rc;
}
