/* test_policy.c - rules and their errors, decisions one by one, and ten thousand random
 * policies and crash histories beside a reference that recounts everything from the
 * list of what happened. */
#include "policy/core/policy.h"

#include <stdio.h>

#include "base/rng.h"
#include "testing.h"

/* ---- reading ---- */

static const struct {
    struct policy_options given;
    const char *printed; /* NULL: refused, */
    const char *error;   /* with these words */
} readings[] = {
    { { "default", NULL, NULL }, "default\n\n", NULL },
    { { "", NULL, NULL }, "default\n\n", NULL },
    { { "oom:stop", "5/1h", "1s..60s" }, "oom:stop,default\n5/1h\n1s..1m", NULL },
    { { " oom:stop , # all of it\n\n exit:3:free", NULL, NULL },
      "oom:stop,exit:3:free,default\n\n",
      NULL },
    { { "default,any:free", NULL, NULL }, "default,any:free\n\n", NULL },
    { { "ValueError@data/train.py:41:stop,OSError@x.py:free", NULL, NULL },
      "ValueError@data/train.py:41:stop,OSError@x.py:free,default\n\n",
      NULL },
    { { "signal:SIGKILL:free,torch.OutOfMemoryError:stop", NULL, NULL },
      "signal:SIGKILL:free,torch.OutOfMemoryError:stop,default\n\n",
      NULL },
    { { NULL, "1/90s", "500ms" }, "\n1/90s\n500ms..500ms", NULL },
    { { "ValeuError:stop", NULL, NULL }, NULL, "did you mean ValueError?" },
    { { "om:stop", NULL, NULL }, NULL, "did you mean oom?" },
    { { "MyOwnProblem:stop", NULL, NULL }, NULL, "__main__.MyError" },
    { { "oom:halt", NULL, NULL }, NULL, "none of stop, restart and free" },
    { { "oom:fre", NULL, NULL }, NULL, "did you mean free?" },
    { { "oom", NULL, NULL }, NULL, "write CAUSE:stop" },
    { { "exit:256:stop", NULL, NULL }, NULL, "from 1 to 255" },
    { { "exit:0:stop", NULL, NULL }, NULL, "from 1 to 255" },
    { { "exit:x:stop", NULL, NULL }, NULL, "from 1 to 255" },
    { { "signal:SIGKIL:stop", NULL, NULL }, NULL, "did you mean SIGKILL?" },
    { { "signal:KILL:stop", NULL, NULL }, NULL, "did you mean SIGKILL?" },
    { { "ValueError@a.py:0:stop", NULL, NULL }, NULL, "is no line" },
    { { NULL, "5", NULL }, NULL, "in which time? Add it: 5/1h" },
    { { NULL, "5/0s", NULL }, NULL, "did you mean 5/1h?" },
    { { NULL, "0/1h", NULL }, NULL, "from 1 to 1000" },
    { { NULL, "5/60", NULL }, NULL, "60 what?" },
    { { NULL, "5/1hr", NULL }, NULL, "give a time" },
    { { NULL, NULL, "60s..1s" }, NULL, "the first wait and the longest one" },
    { { NULL, NULL, "0s..1s" }, NULL, "the first wait and the longest one" },
    { { NULL, NULL, "1..60" }, NULL, "1 what?" },
};

static void test_reading(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(readings); i++) {
        struct muster_error err = { 0 };
        struct policy p, again;
        struct buf b;
        const int rc = policy_parse(&p, &readings[i].given, &err);

        if (!readings[i].printed) {
            if (rc != MUSTER_EINVAL || !strstr(err.text, readings[i].error))
                fail_msg("row %zu: %d, %s", i, rc, err.text);
            continue;
        }
        assert_int_equal(rc, 0);
        buf_init(&b, SIZE_MAX);
        assert_int_equal(policy_print(&b, &p), 0);
        assert_true(span_eq(buf_span(&b), span_str(readings[i].printed)));
        assert_int_equal(policy_scan(&again, buf_span(&b), &err), 0);
        assert_int_equal(again.count, p.count);
        policy_fini(&again);
        policy_fini(&p);
        buf_fini(&b);
    }
}

static void test_too_many(void **state)
{
    struct muster_error err;
    struct policy p;
    struct buf b;

    (void)state;
    buf_init(&b, SIZE_MAX);
    for (unsigned i = 0; i <= POLICY_RULES; i++)
        (void)buf_append_str(&b, "oom:stop,");
    (void)buf_u8(&b, 0);
    const struct policy_options o = { .rules = (const char *)buf_data(&b) };

    assert_int_equal(policy_parse(&p, &o, &err), MUSTER_EINVAL);
    assert_non_null(strstr(err.text, "more than 100 rules"));
    buf_fini(&b);
}

/* ---- one decision ---- */

static struct policy_failure raised(const char *name, const char *file, int64_t line)
{
    return (struct policy_failure){ .kind = POLICY_CLASS,
                                    .name = span_str(name),
                                    .file = span_str(file),
                                    .line = line,
                                    .allowed = 10,
                                    .now_us = 1 };
}

static void test_rules(void **state)
{
    const struct {
        const char *rules, *name, *file;
        int64_t line;
        enum policy_action action;
    } rows[] = {
        { "default", "SyntaxError", "a.py", 1, POLICY_STOP },
        { "default", "TabError", "a.py", 1, POLICY_STOP },
        { "default", "ModuleNotFoundError", "a.py", 1, POLICY_STOP },
        { "default", "ValueError", "a.py", 1, POLICY_RESTART },
        { "ModuleNotFoundError:restart", "ModuleNotFoundError", "", 0, POLICY_RESTART },
        { "ModuleNotFoundError:restart", "ImportError", "", 0, POLICY_STOP },
        { "Exception:free", "my.Own", "a.py", 1, POLICY_FREE },
        { "Exception:free", "KeyboardInterrupt", "a.py", 1, POLICY_RESTART },
        { "my.Own:stop", "Own", "a.py", 1, POLICY_STOP },
        { "my.Own:stop", "their.Own", "a.py", 1, POLICY_RESTART },
        { "__main__.Own:stop", "Own", "a.py", 1, POLICY_STOP },
        { "OSError@data.py:stop", "FileNotFoundError", "/x/data.py", 7, POLICY_STOP },
        { "OSError@data.py:stop", "FileNotFoundError", "/x/mydata.py", 7,
          POLICY_RESTART },
        { "OSError@data.py:7:stop", "OSError", "data.py", 8, POLICY_RESTART },
        { "OSError@x/data.py:7:stop", "OSError", "/u/x/data.py", 7, POLICY_STOP },
        { "any:free", "SyntaxError", "a.py", 1, POLICY_FREE },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const struct policy_failure f =
            raised(rows[i].name, rows[i].file, rows[i].line);
        struct policy_history h = { 0 };
        struct policy_decision d;
        struct policy p;

        assert_int_equal(
            policy_parse(&p, &(struct policy_options){ .rules = rows[i].rules }, NULL),
            0);
        assert_int_equal(policy_decide(&p, &h, &f, &d), 0);
        if (d.action != rows[i].action)
            fail_msg("row %zu: %s", i, policy_action_name(d.action));
        policy_history_fini(&h);
        policy_fini(&p);
    }
}

/* The same place three times stops; progress, or another place, begins anew. */
static void test_repeats(void **state)
{
    const struct {
        int64_t line;
        bool progress, stops;
    } rows[] = { { 41, false, false }, { 41, false, false }, { 41, true, false },
                 { 41, false, false }, { 42, false, false }, { 42, false, false },
                 { 42, false, true },  { 42, false, true },  { 41, false, false } };
    struct policy_history h = { 0 };
    struct policy_decision d;
    struct policy p;

    (void)state;
    assert_int_equal(
        policy_parse(&p, &(struct policy_options){ "default", 0, 0 }, NULL), 0);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct policy_failure f = raised("ValueError", "train.py", rows[i].line);

        f.progress = rows[i].progress;
        assert_int_equal(policy_decide(&p, &h, &f, &d), 0);
        if ((d.reason == POLICY_BY_REPEAT) != rows[i].stops)
            fail_msg("row %zu: %d", i, (int)d.reason);
    }
    policy_history_fini(&h);
    policy_fini(&p);
}

/* ---- beside the reference ---- */

#define LIFE 60

/* What can fail, and which of the rules below means it. */
static const struct {
    struct policy_failure f;
    const char *rules[5]; /* causes that fit */
    bool placed, node;
} kinds[] = {
    { { .kind = POLICY_CLASS, .name = { (const uint8_t *)"IndentationError", 16 } },
      { "SyntaxError", "IndentationError", "Exception" },
      true,
      false },
    { { .kind = POLICY_CLASS, .name = { (const uint8_t *)"ModuleNotFoundError", 19 } },
      { "ImportError", "ModuleNotFoundError", "Exception" },
      true,
      false },
    { { .kind = POLICY_CLASS, .name = { (const uint8_t *)"ValueError", 10 } },
      { "ValueError", "ValueError@t.py", "Exception" },
      true,
      false },
    { { .kind = POLICY_CLASS, .name = { (const uint8_t *)"torch.Oops", 10 } },
      { "torch.Oops", "Exception" },
      true,
      false },
    { { .kind = POLICY_EXIT, .number = 2 }, { "exit:2" }, false, false },
    { { .kind = POLICY_EXIT, .number = 7 }, { "exit:7" }, false, false },
    { { .kind = POLICY_SIGNAL, .number = 9 }, { "signal:SIGKILL" }, false, false },
    { { .kind = POLICY_OOM }, { "oom" }, false, false },
    { { .kind = POLICY_HANG }, { "hang" }, false, false },
    { { .kind = POLICY_NODE }, { "node" }, false, true },
    { { .kind = POLICY_NOTICE }, { "notice" }, false, true },
    { { .kind = POLICY_OTHER }, { NULL }, false, false },
};

static const char *const causes[] = {
    "SyntaxError",    "IndentationError",
    "ImportError",    "ModuleNotFoundError",
    "ValueError",     "ValueError@t.py",
    "Exception",      "torch.Oops",
    "exit:2",         "exit:7",
    "signal:SIGKILL", "oom",
    "hang",           "node",
    "notice",         "any",
    "repeat",
};
static const char *const outcomes[] = { "stop", "restart", "free" };

struct line { /* a rule of the reference: two words */
    const char *cause, *outcome;
};

static const struct line usual[] = {
    { "SyntaxError", "stop" }, { "ImportError", "stop" }, { "exit:2", "stop" },
    { "node", "free" },        { "notice", "free" },      { "repeat", "stop" }
};

struct past { /* what has happened */
    size_t kind;
    int64_t line;
    bool progress;
    uint64_t us;
    const char *outcome; /* "none": used up */
};

struct reference {
    struct line rules[40];
    size_t count;
    bool has_rules;
    int64_t budget, allowed;
    uint64_t window_us, least_us, most_us;
    struct past past[LIFE];
    size_t happened;
};

static bool in_row(const struct reference *r, size_t n)
{
    const struct past *now = &r->past[r->happened];
    size_t same = 1;

    if (!kinds[now->kind].placed)
        return false;
    for (size_t i = r->happened; !r->past[i].progress || i == r->happened; i--) {
        if (r->past[i].progress)
            break; /* before this attempt nothing counts */
        size_t k = i;

        while (k > 0 && kinds[r->past[k - 1].kind].node)
            k--;
        if (k == 0 || r->past[k - 1].kind != now->kind ||
            r->past[k - 1].line != now->line)
            break;
        same++;
        i = k;
    }
    return same >= n;
}

static const char *reference_says(const struct reference *r)
{
    const struct past *now = &r->past[r->happened];

    for (size_t i = 0; r->has_rules && i < r->count; i++) {
        bool hit = strcmp(r->rules[i].cause, "any") == 0 ||
                   (strcmp(r->rules[i].cause, "repeat") == 0 && in_row(r, 3) &&
                    !kinds[now->kind].node);

        for (size_t k = 0; kinds[now->kind].rules[k]; k++)
            hit |= strcmp(r->rules[i].cause, kinds[now->kind].rules[k]) == 0;
        if (hit)
            return r->rules[i].outcome;
    }
    return kinds[now->kind].node ? "free" : "restart";
}

static int64_t counted(const struct reference *r, uint64_t within_us)
{
    int64_t n = 0;

    for (size_t i = 0; i < r->happened; i++)
        n += strcmp(r->past[i].outcome, "restart") == 0 &&
             r->past[r->happened].us - r->past[i].us < within_us;
    return n;
}

static uint64_t longest_wait(const struct reference *r)
{
    uint64_t us = r->least_us;
    size_t i = r->happened;

    for (; i > 0 && !r->past[i].progress; i--)
        if (!kinds[r->past[i - 1].kind].node &&
            (strcmp(r->past[i - 1].outcome, "restart") == 0 ||
             strcmp(r->past[i - 1].outcome, "free") == 0))
            us = us * 2 < r->most_us ? us * 2 : r->most_us;
    return us;
}

static void make_policy(struct rng *rng, struct reference *r, struct policy *p)
{
    char rules[1000] = "", budget[40] = "", backoff[40] = "";
    const size_t own = rng_below(rng, 8);

    *r = (struct reference){ .allowed = (int64_t)rng_below(rng, 12) };
    r->has_rules = rng_below(rng, 5) != 0;
    for (size_t i = 0; r->has_rules && i < own; i++) {
        struct line *l = &r->rules[r->count++];
        const size_t n = strlen(rules);

        *l = (struct line){ causes[rng_below(rng, ARRAY_LEN(causes))],
                            outcomes[rng_below(rng, ARRAY_LEN(outcomes))] };
        (void)snprintf(rules + n, sizeof rules - n, "%s:%s%s", l->cause, l->outcome,
                       rng_below(rng, 2) ? "," : "\n");
    }
    for (size_t i = 0; i < ARRAY_LEN(usual); i++)
        r->rules[r->count++] = usual[i];
    if (rng_below(rng, 2)) {
        r->budget = 1 + (int64_t)rng_below(rng, 5);
        r->window_us = (1 + rng_below(rng, 50)) * 1000000;
        (void)snprintf(budget, sizeof budget, "%d/%ds", (int)r->budget,
                       (int)(r->window_us / 1000000));
        if (rng_below(rng, 2))
            r->allowed = POLICY_UNLIMITED;
    }
    if (rng_below(rng, 2)) {
        r->least_us = (1 + rng_below(rng, 3)) * 1000000;
        r->most_us = r->least_us + rng_below(rng, 20) * 1000000;
        (void)snprintf(backoff, sizeof backoff, "%ds..%ds",
                       (int)(r->least_us / 1000000), (int)(r->most_us / 1000000));
    }
    const struct policy_options o = { r->has_rules ? rules : NULL,
                                      budget[0] ? budget : NULL,
                                      backoff[0] ? backoff : NULL };
    assert_int_equal(policy_parse(p, &o, NULL), 0);
}

static void play(uint64_t seed)
{
    struct policy_history h = { 0 };
    struct reference r;
    struct policy p;
    struct rng rng;
    uint64_t us = 1;

    rng_init(&rng, seed);
    make_policy(&rng, &r, &p);
    const size_t few =
        1 + rng_below(&rng, ARRAY_LEN(kinds)); /* crashes come in loops */

    for (r.happened = 0; r.happened < LIFE; r.happened++) {
        struct past *now = &r.past[r.happened];
        struct policy_decision d;

        us += rng_below(&rng, 12) * 1000000;
        *now = (struct past){ .kind = (seed + rng_below(&rng, few)) % ARRAY_LEN(kinds),
                              .line = 1 + (int64_t)rng_below(&rng, 2),
                              .progress = rng_below(&rng, 6) == 0,
                              .us = us };
        const char *says = reference_says(&r);
        const int64_t used = counted(&r, UINT64_MAX), recent = counted(&r, r.window_us);
        const bool none = strcmp(says, "restart") == 0 &&
                          (used >= r.allowed || (r.budget && recent >= r.budget));
        struct policy_failure f = kinds[now->kind].f;

        now->outcome = none ? "none" : says;
        f.progress = now->progress;
        f.used = used;
        f.allowed = r.allowed;
        f.now_us = us;
        if (kinds[now->kind].placed) {
            f.file = span_str("/x/t.py");
            f.line = now->line;
        }
        assert_int_equal(policy_decide(&p, &h, &f, &d), 0);
        const char *did = d.action == POLICY_STOP && (d.reason == POLICY_BY_LIMIT ||
                                                      d.reason == POLICY_BY_BUDGET)
                              ? "none"
                              : policy_action_name(d.action);
        if (strcmp(did, now->outcome) != 0)
            fail_msg("seed %llu, failure %zu: %s, the reference says %s",
                     (unsigned long long)seed, r.happened, did, now->outcome);
        const uint64_t most = longest_wait(&r);
        const bool waits =
            r.least_us && d.action != POLICY_STOP && !kinds[now->kind].node;

        if (waits ? d.wait_us > most || d.wait_us < r.least_us ||
                        (d.wait_us < most / 4 * 3 && d.wait_us != r.least_us)
                  : d.wait_us != 0)
            fail_msg("seed %llu, failure %zu: waits %llu us, at most %llu are due",
                     (unsigned long long)seed, r.happened,
                     (unsigned long long)d.wait_us, (unsigned long long)most);
        us += d.wait_us;
    }
    policy_history_fini(&h);
    policy_fini(&p);
}

static void test_random(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 10000; seed++)
        play(seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reading), cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_rules),   cmocka_unit_test(test_repeats),
        cmocka_unit_test(test_random),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
