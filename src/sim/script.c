/* script.c - a case: commands, and the transcript that they must give; see sim.h.
 *
 *   # a remark
 *   > group min=2 max=3 last_call=5      seconds; also join, interval, attempts, delay
 *                                        (milliseconds, one way), grace (milliseconds)
 *   > node a ours                        or poller, torch, hosted
 *   > at 1.5 a start                     join, leave, close, end, kill, stop 20, cut 5,
 *                                        skew -20; host crash, host back
 *   > until 60
 *
 * All other lines are the transcript. They are not read, but written anew. */
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "sim/sim.h"

struct script {
    struct sim sim;
    struct sim_config cfg;
    bool begun;
    struct buf *out;
    size_t printed; /* bytes of the transcript that are in out */
};

static int bad(struct script *c, const char *line)
{
    (void)buf_printf(c->out, "  cannot understand: %s\n", line);
    return MUSTER_EINVAL;
}

static void begin(struct script *c)
{
    if (c->begun)
        return;
    sim_init(&c->sim, &c->cfg);
    c->sim.autopilot = true;
    c->begun = true;
}

static int on_group(struct script *c, char *args)
{
    struct rdzv_settings *s = &c->cfg.settings;
    char *save = NULL;

    for (char *w = strtok_r(args, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        char *eq = strchr(w, '=');
        const double v = eq ? strtod(eq + 1, NULL) : 0;

        if (!eq)
            return bad(c, w);
        *eq = '\0';
        if (strcmp(w, "min") == 0)
            s->min_nodes = (int64_t)v;
        else if (strcmp(w, "max") == 0)
            s->max_nodes = (int64_t)v;
        else if (strcmp(w, "last_call") == 0)
            s->last_call_ms = (uint64_t)(v * 1000);
        else if (strcmp(w, "join") == 0)
            s->join_ms = (uint64_t)(v * 1000);
        else if (strcmp(w, "interval") == 0)
            s->keep_alive_interval_s = (int64_t)v;
        else if (strcmp(w, "attempts") == 0)
            s->keep_alive_max_attempt = (int64_t)v;
        else if (strcmp(w, "delay") == 0)
            c->cfg.delay_us = (uint64_t)(v * 1000);
        else if (strcmp(w, "grace") == 0)
            c->cfg.grace_ms = (uint64_t)v;
        else
            return bad(c, w);
    }
    return 0;
}

static int on_node(struct script *c, char *args)
{
    char name[16], kind[16];

    if (sscanf(args, "%15s %15s", name, kind) != 2)
        return bad(c, args);
    begin(c);
    for (unsigned k = 0; k < SIM_KINDS; k++) {
        if (strcmp(kind, sim_kind_names[k]) == 0) {
            (void)sim_add(&c->sim, (enum sim_kind)k, name);
            return 0;
        }
    }
    return bad(c, args);
}

static int on_host(struct script *c, const char *what)
{
    struct sim *s = &c->sim;

    if (strcmp(what, "crash") == 0) {
        sim_host_stop(s);
        s->host_calm_t = SIM_NEVER;
    } else if (strcmp(what, "back") == 0) {
        sim_host_start(s);
    } else {
        return bad(c, what);
    }
    return 0;
}

static int on_action(struct script *c, struct sim_node *n, const char *what, double arg)
{
    static const struct {
        const char *name;
        enum sim_todo todo;
    } todos[] = { { "start", SIM_DO_START },
                  { "join", SIM_DO_JOIN },
                  { "leave", SIM_DO_LEAVE },
                  { "close", SIM_DO_CLOSE },
                  { "end", SIM_DO_END } };
    const uint64_t until_t = c->sim.t + (uint64_t)(arg * 1e6);

    for (size_t i = 0; i < ARRAY_LEN(todos); i++) {
        if (strcmp(what, todos[i].name) == 0) {
            sim_do(n, todos[i].todo);
            return 0;
        }
    }
    if (strcmp(what, "kill") == 0)
        sim_kill(n);
    else if (strcmp(what, "stop") == 0)
        n->stopped_t = n->calm_from_t = until_t;
    else if (strcmp(what, "cut") == 0)
        n->cut_t = n->calm_from_t = until_t;
    else if (strcmp(what, "skew") == 0)
        n->skew_us = (int64_t)(arg * 1e6);
    else
        return bad(c, what);
    return 0;
}

static void run_until(struct script *c, double seconds)
{
    (void)sim_run(&c->sim, (uint64_t)(seconds * 1e6));
    (void)buf_append(c->out, buf_data(&c->sim.out) + c->printed,
                     buf_len(&c->sim.out) - c->printed);
    c->printed = buf_len(&c->sim.out);
}

static int on_at(struct script *c, const char *args)
{
    char who[16], what[16];
    double t, arg = 0;

    if (sscanf(args, "%lf %15s %15s %lf", &t, who, what, &arg) < 3)
        return bad(c, args);
    if (strcmp(who, "host") == 0)
        return on_host(c, what);
    for (size_t i = 0; i < c->sim.count; i++) {
        if (strcmp(c->sim.nodes[i].name, who) == 0)
            return on_action(c, &c->sim.nodes[i], what, arg);
    }
    return bad(c, args);
}

static int on_command(struct script *c, const char *line)
{
    char copy[200], *args;
    int rc;

    (void)snprintf(copy, sizeof copy, "%s", line + 2);
    args = strchr(copy, ' ');
    if (!args)
        return bad(c, line);
    *args++ = '\0';
    if (strcmp(copy, "at") == 0 || strcmp(copy, "until") == 0) {
        begin(c);
        run_until(c, strtod(args, NULL));
    }
    (void)buf_printf(c->out, "%s\n", line);
    if (strcmp(copy, "group") == 0)
        return on_group(c, args);
    if (strcmp(copy, "node") == 0)
        return on_node(c, args);
    if (strcmp(copy, "until") == 0)
        return 0;
    if (strcmp(copy, "at") != 0)
        return bad(c, line);
    rc = on_at(c, args);
    run_until(c, (double)c->sim.t / 1e6);
    return rc;
}

int sim_script(const char *text, struct buf *out)
{
    struct script c = { .out = out, .cfg = { .delay_us = 1000, .seed = 1 } };
    int rc = 0;

    rdzv_settings_init(&c.cfg.settings, 1, 1);
    while (*text && rc == 0) {
        const size_t n = strcspn(text, "\n");
        char *line = mem_strndup(text, n);

        if (line[0] == '>' && line[1] == ' ')
            rc = on_command(&c, line);
        else if (line[0] == '#' || line[0] == '\0')
            (void)buf_printf(out, "%s\n", line);
        mem_free(line);
        text += n + (text[n] == '\n');
    }
    if (c.begun) {
        if (c.sim.fail[0])
            rc = MUSTER_EBUG;
        sim_fini(&c.sim);
    }
    return rc;
}
