/* policy.c - see policy.h. In order: words, rules, the other two options, the policy as
 * text, the decision. */
#include "policy/core/policy.h"

#include <assert.h>
#include <inttypes.h>

#include "base/duration.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/nearest.h"
#include "base/rng.h"
#include "base/signal_names.h"

#define RULES_OPTION   "--restart-policy"
#define BUDGET_OPTION  "--restart-budget"
#define BACKOFF_OPTION "--restart-backoff"

static const char defaults[] = "SyntaxError:stop,ImportError:stop,exit:2:stop,"
                               "node:free,notice:free,repeat:stop";

/* ---- words ---- */

static const char *const actions[] = {
    [POLICY_STOP] = "stop", [POLICY_RESTART] = "restart", [POLICY_FREE] = "free"
};

const char *policy_action_name(enum policy_action action)
{
    assert((size_t)action < ARRAY_LEN(actions));
    return actions[action];
}

const char *policy_reason_name(uint32_t reason)
{
    static const char *const names[] = {
        [POLICY_BY_NOBODY] = "none",   [POLICY_BY_COUNT] = "restart",
        [POLICY_BY_FREE] = "free",     [POLICY_BY_RULE] = "rule",
        [POLICY_BY_REPEAT] = "repeat", [POLICY_BY_LIMIT] = "limit",
        [POLICY_BY_BUDGET] = "budget"
    };

    return reason < ARRAY_LEN(names) ? names[reason] : "?";
}

static const char *const words[] = {
    [POLICY_ANY] = "any",     [POLICY_REPEAT] = "repeat", [POLICY_OOM] = "oom",
    [POLICY_HANG] = "hang",   [POLICY_NODE] = "node",     [POLICY_NOTICE] = "notice",
    [POLICY_CHECK] = "check", [POLICY_EXIT] = "exit",     [POLICY_SIGNAL] = "signal"
};

/* Python's own exceptions, and what each is a child of. */
static const struct {
    const char *name, *parent;
} classes[] = {
    { "BaseException", "" },
    { "BaseExceptionGroup", "BaseException" },
    { "GeneratorExit", "BaseException" },
    { "KeyboardInterrupt", "BaseException" },
    { "SystemExit", "BaseException" },
    { "Exception", "BaseException" },
    { "ExceptionGroup", "Exception" },
    { "ArithmeticError", "Exception" },
    { "FloatingPointError", "ArithmeticError" },
    { "OverflowError", "ArithmeticError" },
    { "ZeroDivisionError", "ArithmeticError" },
    { "AssertionError", "Exception" },
    { "AttributeError", "Exception" },
    { "BufferError", "Exception" },
    { "EOFError", "Exception" },
    { "ImportError", "Exception" },
    { "ModuleNotFoundError", "ImportError" },
    { "LookupError", "Exception" },
    { "IndexError", "LookupError" },
    { "KeyError", "LookupError" },
    { "MemoryError", "Exception" },
    { "NameError", "Exception" },
    { "UnboundLocalError", "NameError" },
    { "OSError", "Exception" },
    { "BlockingIOError", "OSError" },
    { "ChildProcessError", "OSError" },
    { "ConnectionError", "OSError" },
    { "BrokenPipeError", "ConnectionError" },
    { "ConnectionAbortedError", "ConnectionError" },
    { "ConnectionRefusedError", "ConnectionError" },
    { "ConnectionResetError", "ConnectionError" },
    { "FileExistsError", "OSError" },
    { "FileNotFoundError", "OSError" },
    { "InterruptedError", "OSError" },
    { "IsADirectoryError", "OSError" },
    { "NotADirectoryError", "OSError" },
    { "PermissionError", "OSError" },
    { "ProcessLookupError", "OSError" },
    { "TimeoutError", "OSError" },
    { "ReferenceError", "Exception" },
    { "RuntimeError", "Exception" },
    { "NotImplementedError", "RuntimeError" },
    { "PythonFinalizationError", "RuntimeError" },
    { "RecursionError", "RuntimeError" },
    { "StopAsyncIteration", "Exception" },
    { "StopIteration", "Exception" },
    { "SyntaxError", "Exception" },
    { "IndentationError", "SyntaxError" },
    { "TabError", "IndentationError" },
    { "SystemError", "Exception" },
    { "TypeError", "Exception" },
    { "ValueError", "Exception" },
    { "UnicodeError", "ValueError" },
    { "UnicodeDecodeError", "UnicodeError" },
    { "UnicodeEncodeError", "UnicodeError" },
    { "UnicodeTranslateError", "UnicodeError" },
    { "Warning", "Exception" },
};

/* What it is a child of; NULL: not one of Python's own. */
static const char *parent_of(struct span name)
{
    for (size_t i = 0; i < ARRAY_LEN(classes); i++)
        if (span_eq(span_str(classes[i].name), name))
            return classes[i].parent;
    return NULL;
}

static struct span last_part(struct span name)
{
    const uint8_t *dot = name.n ? memrchr(name.p, '.', name.n) : NULL;

    return dot ? span_skip(name, (size_t)(dot + 1 - name.p)) : name;
}

/* Tracebacks name a class of the script itself without its module, and error files
 * name every class so. */
static bool is_class(struct span failed, const char *rule)
{
    const struct span meant = span_str(rule);
    const struct span plain = last_part(meant);

    if (plain.n < meant.n)
        return span_eq(failed, meant) || span_eq(failed, plain);
    while (failed.n && !span_eq(failed, meant)) {
        const char *up = parent_of(failed);

        failed = span_str(up ? up : "Exception"); /* of a class of somebody's own */
    }
    return failed.n > 0;
}

/* ---- rules ---- */

static struct span trimmed(struct span s)
{
    while (s.n && (s.p[0] == ' ' || s.p[0] == '\t' || s.p[0] == '\r'))
        s = span_skip(s, 1);
    while (s.n && (s.p[s.n - 1] == ' ' || s.p[s.n - 1] == '\t' || s.p[s.n - 1] == '\r'))
        s.n--;
    return s;
}

/* Takes what is before the first such byte off *rest; all of it if there is none. */
static struct span take_until(struct span *rest, const char *ends)
{
    size_t n = 0;

    while (n < rest->n && !strchr(ends, rest->p[n]))
        n++;
    const struct span head = span_of(rest->p, n);

    *rest = n < rest->n ? span_skip(*rest, n + 1) : span_of(NULL, 0);
    return head;
}

static int refuse(struct muster_error *err, struct span rule, struct span word,
                  const char *what, const char *nearest)
{
    (void)err_set(err, MUSTER_EINVAL, RULES_OPTION ": %.*s: '%.*s' %s",
                  (int)MIN_OF(rule.n, 120), (const char *)rule.p,
                  (int)MIN_OF(word.n, 80), (const char *)word.p, what);
    if (nearest)
        err_add(err, "; did you mean %s?", nearest);
    return MUSTER_EINVAL;
}

static bool scan_number(struct span s, int64_t most, int64_t *out)
{
    int64_t n = 0;

    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] < '0' || s.p[i] > '9' || n > most)
            return false;
        n = n * 10 + (s.p[i] - '0');
    }
    *out = n;
    return s.n > 0 && n <= most;
}

static const char *nearest_cause(struct span word)
{
    struct nearest near = { 0 };

    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        nearest_try(&near, word, words[i]);
    for (size_t i = 0; i < ARRAY_LEN(classes); i++)
        nearest_try(&near, word, classes[i].name);
    return near.word;
}

static bool is_word(struct span s)
{
    for (size_t i = 0; i < s.n; i++) {
        const uint8_t c = s.p[i];

        if (!(c == '_' || c == '.' || c >= 0x80 || (c >= '0' && c <= '9') ||
              (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')))
            return false;
    }
    return s.n > 0;
}

/* CLASS[@FILE[:LINE]]; rest: what follows the colon. */
static int scan_class(struct policy_rule *r, struct span whole, struct span cause,
                      struct muster_error *err)
{
    struct span file = cause;
    const struct span name = take_until(&file, "@");
    struct span line = file;

    file = take_until(&line, ":");
    if (!parent_of(name) && (name.n == last_part(name).n || !is_word(name))) {
        const char *near = nearest_cause(name);

        (void)refuse(err, whole, name, "is no cause", near);
        err_add(err,
                "\nCauses are any, repeat, oom, hang, node, notice, check, exit:N, "
                "signal:NAME, and Python's exceptions; others have their module: "
                "torch.OutOfMemoryError, __main__.MyError.");
        return MUSTER_EINVAL;
    }
    if (name.n >= sizeof r->name || file.n >= sizeof r->file)
        return refuse(err, whole, name, "is too long", NULL);
    if (line.n && (!scan_number(line, INT32_MAX, &r->line) || r->line == 0))
        return refuse(err, whole, line, "is no line of a file", NULL);
    r->kind = POLICY_CLASS;
    memcpy(r->name, name.p, name.n);
    if (file.n)
        memcpy(r->file, file.p, file.n);
    return 0;
}

static int scan_cause(struct policy_rule *r, struct span whole, struct span cause,
                      struct muster_error *err)
{
    struct span rest = cause;
    const struct span word = take_until(&rest, ":");
    int64_t n = 0;

    if (span_eq(word, span_str("exit"))) {
        if (!scan_number(rest, 255, &n) || n == 0)
            return refuse(err, whole, rest, "is no exit code: give one from 1 to 255",
                          NULL);
        r->kind = POLICY_EXIT;
        r->number = (int)n;
        return 0;
    }
    if (span_eq(word, span_str("signal"))) {
        r->kind = POLICY_SIGNAL;
        r->number = signal_number(rest);
        return r->number
                   ? 0
                   : refuse(err, whole, rest, "is no signal", signal_nearest(rest));
    }
    for (size_t i = 0; i < POLICY_EXIT; i++)
        if (span_eq(cause, span_str(words[i]))) {
            r->kind = (enum policy_kind)i;
            return 0;
        }
    return scan_class(r, whole, cause, err);
}

static int scan_rule(struct policy_rule *r, struct span text, struct muster_error *err)
{
    const uint8_t *colon = memrchr(text.p, ':', text.n);
    struct nearest near = { 0 };

    if (!colon)
        return refuse(err, text, text,
                      "is no rule: write CAUSE:stop, CAUSE:restart or "
                      "CAUSE:free",
                      nearest_cause(text));
    const struct span cause = span_of(text.p, (size_t)(colon - text.p));
    const struct span action = span_skip(text, cause.n + 1);

    for (size_t i = 0; i < ARRAY_LEN(actions); i++) {
        nearest_try(&near, action, actions[i]);
        if (span_eq(action, span_str(actions[i]))) {
            r->action = (enum policy_action)i;
            return scan_cause(r, text, cause, err);
        }
    }
    return refuse(err, text, action, "is none of stop, restart and free", near.word);
}

/* The rules of a text, between commas or on lines of their own; # begins a remark. */
static int scan_rules(struct policy *p, struct span rest, bool by_default,
                      struct muster_error *err)
{
    bool has_defaults = by_default;
    int rc = 0;

    if (rest.n > POLICY_TEXT_MAX)
        return err_set(err, MUSTER_EINVAL, RULES_OPTION ": more than %u bytes of rules",
                       POLICY_TEXT_MAX);
    while (rc == 0 && rest.n) {
        struct span line = span_take_line(&rest);

        line = take_until(&line, "#");
        while (rc == 0 && line.n) {
            const struct span text = trimmed(take_until(&line, ","));

            if (text.n == 0)
                continue;
            if (!has_defaults && span_eq(text, span_str("default"))) {
                has_defaults = true;
                rc = scan_rules(p, span_str(defaults), true, err);
                continue;
            }
            if (p->count == POLICY_RULES && !by_default)
                return err_set(err, MUSTER_EINVAL, RULES_OPTION ": more than %u rules",
                               POLICY_RULES);
            struct policy_rule r = { .by_default = by_default };

            rc = scan_rule(&r, text, err);
            struct policy_rule *rules =
                rc ? NULL : mem_realloc_array(p->rules, p->count + 1, sizeof *rules);
            if (rc)
                return rc;
            if (!rules)
                return err_nomem(err);
            p->rules = rules;
            p->rules[p->count++] = r;
        }
    }
    if (rc == 0 && !has_defaults)
        rc = scan_rules(p, span_str(defaults), true, err);
    return rc;
}

/* ---- the other two options ---- */

static int scan_budget(struct policy *p, const char *text, struct muster_error *err)
{
    struct span rest = span_str(text);
    const struct span number = take_until(&rest, "/");
    int rc;

    if (!scan_number(number, POLICY_BUDGET_MAX, &p->budget) || p->budget == 0)
        return err_set(err, MUSTER_EINVAL,
                       BUDGET_OPTION "=%.100s: give how many restarts there may be in "
                                     "which time, from 1 to %d: 5/1h",
                       text, POLICY_BUDGET_MAX);
    if (rest.n == 0)
        return err_set(err, MUSTER_EINVAL,
                       BUDGET_OPTION "=%.100s: in which time? Add it: %.*s/1h", text,
                       (int)number.n, (const char *)number.p);
    rc = duration_parse(BUDGET_OPTION, rest, 0, &p->window_ms, err);
    if (rc == 0 && p->window_ms == 0)
        rc = err_set(err, MUSTER_EINVAL,
                     BUDGET_OPTION
                     "=%.100s: a window of no time limits nothing; did you "
                     "mean %.*s/1h?",
                     text, (int)number.n, (const char *)number.p);
    return rc;
}

static int scan_backoff(struct policy *p, const char *text, struct muster_error *err)
{
    const char *dots = strstr(text, "..");
    const struct span least =
        span_of(text, dots ? (size_t)(dots - text) : strlen(text));
    int rc = duration_parse(BACKOFF_OPTION, least, 0, &p->wait_least_ms, err);

    p->wait_most_ms = p->wait_least_ms;
    if (rc == 0 && dots)
        rc = duration_parse(BACKOFF_OPTION, span_str(dots + 2), 0, &p->wait_most_ms,
                            err);
    if (rc == 0 && (p->wait_least_ms == 0 || p->wait_most_ms < p->wait_least_ms))
        rc = err_set(err, MUSTER_EINVAL,
                     BACKOFF_OPTION "=%.100s: give the first wait and the longest one: "
                                    "1s..60s",
                     text);
    return rc;
}

int policy_parse(struct policy *p, const struct policy_options *o,
                 struct muster_error *err)
{
    int rc = 0;

    *p = (struct policy){ 0 };
    if (o->rules)
        rc = scan_rules(p, span_str(o->rules), false, err);
    if (rc == 0 && o->budget)
        rc = scan_budget(p, o->budget, err);
    if (rc == 0 && o->backoff)
        rc = scan_backoff(p, o->backoff, err);
    if (rc)
        policy_fini(p);
    return rc;
}

void policy_fini(struct policy *p)
{
    if (!p)
        return;
    mem_free(p->rules);
    *p = (struct policy){ 0 };
}

/* ---- the policy as text ---- */

void policy_rule_print(struct buf *out, const struct policy_rule *r)
{
    if (r->kind == POLICY_CLASS)
        (void)buf_append_str(out, r->name);
    else
        (void)buf_append_str(out, words[r->kind]);
    if (r->kind == POLICY_EXIT)
        (void)buf_printf(out, ":%d", r->number);
    if (r->kind == POLICY_SIGNAL)
        (void)buf_printf(out, ":%s", signal_name(r->number));
    if (r->file[0])
        (void)buf_printf(out, "@%s", r->file);
    if (r->line)
        (void)buf_printf(out, ":%" PRId64, r->line);
    (void)buf_printf(out, ":%s", actions[r->action]);
}

static void put_time(struct buf *out, uint64_t ms)
{
    static const struct {
        const char *name;
        uint64_t ms;
    } units[] = { { "d", 86400000 }, { "h", 3600000 }, { "m", 60000 }, { "s", 1000 } };

    for (size_t i = 0; i < ARRAY_LEN(units); i++)
        if (ms >= units[i].ms && ms % units[i].ms == 0) {
            (void)buf_printf(out, "%" PRIu64 "%s", ms / units[i].ms, units[i].name);
            return;
        }
    (void)buf_printf(out, "%" PRIu64 "ms", ms);
}

void policy_budget_print(struct buf *out, const struct policy *p)
{
    (void)buf_printf(out, "%" PRId64 "/", p->budget);
    put_time(out, p->window_ms);
}

static void put_backoff(struct buf *out, const struct policy *p)
{
    put_time(out, p->wait_least_ms);
    (void)buf_append_str(out, "..");
    put_time(out, p->wait_most_ms);
}

/* Three lines: rules, budget, back-off. */
int policy_print(struct buf *out, const struct policy *p)
{
    for (size_t i = 0; i < p->count; i++) {
        const bool of_default = p->rules[i].by_default;

        if (of_default && i && p->rules[i - 1].by_default)
            continue;
        if (i)
            (void)buf_append_str(out, ",");
        if (of_default)
            (void)buf_append_str(out, "default");
        else
            policy_rule_print(out, &p->rules[i]);
    }
    (void)buf_append_str(out, "\n");
    if (p->budget)
        policy_budget_print(out, p);
    (void)buf_append_str(out, "\n");
    if (p->wait_least_ms)
        put_backoff(out, p);
    return buf_error(out);
}

int policy_scan(struct policy *p, struct span text, struct muster_error *err)
{
    char *copy = mem_strndup((const char *)text.p, text.n);
    char *lines[3] = { copy, NULL, NULL };
    int rc;

    if (!copy)
        return err_nomem(err);
    for (size_t i = 1; i < ARRAY_LEN(lines); i++) {
        char *nl = lines[i - 1] ? strchr(lines[i - 1], '\n') : NULL;

        lines[i] = nl ? nl + 1 : NULL;
        if (nl)
            *nl = '\0';
    }
    for (size_t i = 0; i < ARRAY_LEN(lines); i++)
        if (lines[i] && !*lines[i])
            lines[i] = NULL;
    rc = policy_parse(p, &(struct policy_options){ lines[0], lines[1], lines[2] }, err);
    mem_free(copy);
    return rc;
}

void policy_explain(struct buf *out, const struct policy *p, int64_t max_restarts)
{
    static const char *const says[] = { [POLICY_STOP] = "the job ends",
                                        [POLICY_RESTART] = "restarted, and counted",
                                        [POLICY_FREE] = "restarted, not counted" };

    for (size_t i = 0; i < p->count; i++) {
        const struct policy_rule *r = &p->rules[i];

        policy_rule_print(out, r);
        (void)buf_printf(out, " - %s%s\n",
                         r->kind == POLICY_REPEAT
                             ? "the same failure at the same place in three attempts "
                               "without progress: "
                         : r->kind == POLICY_CLASS && parent_of(span_str(r->name))
                             ? "it and its children: "
                             : "",
                         says[r->action]);
    }
    if (p->count == 0)
        (void)buf_append_str(out, "node - restarted, not counted\n");
    (void)buf_append_str(out, "anything else - restarted, and counted, ");
    if (max_restarts != POLICY_UNLIMITED)
        (void)buf_printf(out, "%" PRId64 " times%s", max_restarts,
                         p->budget ? " in all and " : "");
    if (p->budget) {
        (void)buf_append_str(out, "at most ");
        policy_budget_print(out, p);
    }
    (void)buf_append_str(out, "\n");
    if (p->wait_least_ms) {
        (void)buf_append_str(out, "before each restart - a wait of ");
        put_backoff(out, p);
        (void)buf_append_str(out, ", doubled while there is no progress\n");
    }
}

/* ---- the decision ---- */

void policy_history_fini(struct policy_history *h)
{
    mem_free(h->times);
    *h = (struct policy_history){ 0 };
}

static bool ends_with_file(struct span path, const char *file)
{
    const size_t n = strlen(file);

    return path.n >= n && memcmp(path.p + path.n - n, file, n) == 0 &&
           (path.n == n || path.p[path.n - n - 1] == '/' || file[0] == '/');
}

static bool fits(const struct policy_rule *r, const struct policy_failure *f,
                 const struct policy_history *h)
{
    if (r->kind == POLICY_ANY)
        return true;
    if (r->kind == POLICY_REPEAT)
        return h->equal >= POLICY_REPEATS && f->kind == POLICY_CLASS;
    if (r->kind != f->kind)
        return false;
    if (r->kind == POLICY_EXIT || r->kind == POLICY_SIGNAL)
        return r->number == f->number;
    return r->kind != POLICY_CLASS ||
           (is_class(f->name, r->name) &&
            (!r->file[0] || ends_with_file(f->file, r->file)) &&
            (!r->line || r->line == f->line));
}

bool policy_stops_by_default(const struct policy_failure *f)
{
    static const struct policy_rule stops[] = {
        { .kind = POLICY_CLASS, .name = "SyntaxError" },
        { .kind = POLICY_CLASS, .name = "ImportError" },
        { .kind = POLICY_EXIT, .number = 2 },
    };
    const struct policy_history none = { 0 };

    for (size_t i = 0; i < ARRAY_LEN(stops); i++)
        if (fits(&stops[i], f, &none))
            return true;
    return false;
}

/* Which failure it is and where, as a number; 0: nobody knows where. */
static uint64_t identity(const struct policy_failure *f)
{
    const struct span texts[] = { f->name, f->file };
    uint64_t hash = rng_mix((uint64_t)f->line);

    if (f->kind != POLICY_CLASS || f->file.n == 0)
        return 0;
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        for (size_t k = 0; k < texts[i].n; k++)
            hash = (hash ^ texts[i].p[k]) * 0x100000001b3u;
        hash = rng_mix(hash);
    }
    return hash | 1;
}

/* Restarts that were counted within the window before now. */
static size_t in_window(const struct policy *p, const struct policy_history *h,
                        uint64_t now_us)
{
    const uint64_t window_us = p->window_ms * 1000;
    size_t n = 0;

    for (size_t i = 0; i < h->count; i++) {
        const uint64_t us = h->times[(h->head + i) % h->size];

        n += us > now_us || now_us - us < window_us;
    }
    return n;
}

static int make_room(const struct policy *p, struct policy_history *h)
{
    if (h->times || p->budget == 0)
        return 0;
    h->times = mem_calloc((size_t)p->budget, sizeof *h->times);
    h->size = h->times ? (size_t)p->budget : 0;
    return h->times ? 0 : MUSTER_ENOMEM;
}

int policy_note_restart(const struct policy *p, struct policy_history *h, uint64_t us)
{
    if (p->budget == 0)
        return 0;
    if (make_room(p, h))
        return MUSTER_ENOMEM;
    if (h->count == h->size) {
        h->head = (h->head + 1) % h->size;
        h->count--;
    }
    h->times[(h->head + h->count++) % h->size] = us;
    return 0;
}

/* Doubled with each restart, and up to a quarter shorter, so that jobs which failed
 * together do not come back together; between the two that were given. */
static uint64_t backoff_us(const struct policy *p, unsigned tries, uint64_t seed)
{
    uint64_t ms = p->wait_least_ms;
    struct rng rng;

    if (ms == 0)
        return 0;
    while (tries-- > 0 && ms < p->wait_most_ms)
        ms *= 2;
    ms = MIN_OF(ms, p->wait_most_ms);
    rng_init(&rng, seed);
    const uint64_t us = ms * 1000 - rng_below(&rng, ms * 250 + 1);

    return MAX_OF(us, p->wait_least_ms * 1000);
}

int policy_decide(const struct policy *p, struct policy_history *h,
                  const struct policy_failure *f, struct policy_decision *out)
{
    const uint64_t same = identity(f);
    const bool of_node = f->kind == POLICY_NODE || f->kind == POLICY_NOTICE;

    if (make_room(p, h))
        return MUSTER_ENOMEM;
    *out = (struct policy_decision){ .action = of_node ? POLICY_FREE : POLICY_RESTART,
                                     .left = -1 };
    if (f->progress)
        h->tries = 0;
    if (!of_node) { /* A lost node says nothing about the program. */
        h->equal = same && same == h->same && !f->progress ? h->equal + 1 : 1;
        h->same = same;
    }
    for (size_t i = 0; i < p->count && !out->rule; i++)
        if (fits(&p->rules[i], f, h)) {
            out->rule = &p->rules[i];
            out->action = out->rule->action;
        }
    const size_t recent = p->budget ? in_window(p, h, f->now_us) : 0;
    const bool spent = f->used >= f->allowed;
    const bool over = p->budget && recent >= (size_t)p->budget;

    out->reason = out->action == POLICY_FREE                      ? POLICY_BY_FREE
                  : out->action == POLICY_RESTART                 ? POLICY_BY_COUNT
                  : out->rule && out->rule->kind == POLICY_REPEAT ? POLICY_BY_REPEAT
                                                                  : POLICY_BY_RULE;
    if (out->action == POLICY_RESTART && (spent || over)) {
        out->action = POLICY_STOP;
        out->reason = spent ? POLICY_BY_LIMIT : POLICY_BY_BUDGET;
    }
    const int64_t one = out->action == POLICY_RESTART;

    if (f->allowed != POLICY_UNLIMITED)
        out->left = MAX_OF(f->allowed - f->used - one, 0);
    if (p->budget) {
        const int64_t rest = MAX_OF(p->budget - (int64_t)recent - one, 0);

        out->left = out->left < 0 ? rest : MIN_OF(out->left, rest);
    }
    if (out->action == POLICY_STOP)
        return 0;
    if (!of_node)
        out->wait_us = backoff_us(p, h->tries++, rng_mix(f->now_us ^ same));
    return one && !f->only_asked ? policy_note_restart(p, h, f->now_us) : 0;
}
