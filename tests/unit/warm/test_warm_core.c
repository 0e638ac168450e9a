/* test_warm_core.c - which modules, what the interpreter's lines mean, and when one
 * that is gone is replaced. */
#include "testing.h"

#include <errno.h>
#include <signal.h>

#include "warm/core/warm_core.h"

static void names_of_modules(void **state)
{
    const struct {
        const char *name;
        bool good;
    } rows[] = {
        { "torch", true },     { "torch._dynamo", true },
        { "a1.b2", true },     { "_x", true },
        { "", false },         { ".", false },
        { "a.", false },       { ".a", false },
        { "a..b", false },     { "1a", false },
        { "a.1", false },      { "a b", false },
        { "a/b", false },      { "-m", false },
        { "h\xc3\xa4", true }, { "a\nb", false },
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (warm_is_module(span_str(rows[i].name)) != rows[i].good)
            fail_msg("%s", rows[i].name);
}

static void values_of_the_option(void **state)
{
    const struct {
        const char *value;
        int rc;
        const char *first;
        size_t count;
        bool optional, learning;
    } rows[] = {
        { "", 0, "torch", 0, true, false },
        { "auto", 0, "torch", 0, true, true },
        { "numpy", 0, "numpy", 1, false, false },
        { "a,b.c,a", 0, "a", 2, false, false },
        { "a,", MUSTER_EINVAL, NULL, 0, false, false },
        { "a,,b", MUSTER_EINVAL, NULL, 0, false, false },
        { "train.py ", MUSTER_EINVAL, NULL, 0, false, false },
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct muster_error err;
        struct warm_core w;

        assert_int_equal(warm_core_init(&w, rows[i].value, &err), rows[i].rc);
        if (rows[i].rc != 0)
            continue;
        assert_string_equal(w.modules.items[0], rows[i].first);
        if (rows[i].count)
            assert_int_equal(w.modules.count, rows[i].count);
        assert_int_equal(w.optional, rows[i].optional);
        assert_int_equal(w.learning, rows[i].learning);
        warm_core_fini(&w);
    }
}

static enum warm_log_level line(struct warm_core *w, const char *text,
                                struct warm_text *out)
{
    assert_int_equal(warm_core_line(w, span_str(text), out), 0);
    return out->level;
}

static void is_replaced_or_not(void **state)
{
    const struct {
        const char *says, *lines[3];
        int status, errnum;
        bool again;
        enum warm_log_level level;
        const char *text; /* part of what is told */
    } rows[] = {
        { "killed when ready", { "ready 1 2 3" }, SIGKILL, 0, true, WARM_WARN, "gone" },
        { "killed while it begins again",
          { "ready 1 2 3", "stale /x.py" },
          SIGKILL,
          0,
          true,
          WARM_WARN,
          "signal 9" },
        { "killed while it imports",
          { "importing torch" },
          SIGKILL,
          0,
          true,
          WARM_WARN,
          "ended by signal 9 while it imported torch); another one" },
        { "crashed while it imports",
          { "importing torch" },
          SIGSEGV,
          0,
          false,
          WARM_WARN,
          "ended by signal 11 while it imported torch; workers start the ordinary" },
        { "not a module",
          { "failed no torch" },
          70 << 8,
          0,
          false,
          WARM_WARN,
          "no torch" },
        { "not a program", { NULL }, 0, ENOENT, false, WARM_WARN, "No such file" },
        { "PYTHONPATH is ignored",
          { NULL },
          77 << 8,
          0,
          false,
          WARM_WARN,
          "PYTHONPATH" },
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct warm_text text;
        struct warm_core w;

        assert_int_equal(warm_core_init(&w, "a,b", NULL), 0);
        for (size_t k = 0; k < 3 && rows[i].lines[k]; k++)
            (void)line(&w, rows[i].lines[k], &text);
        const bool again = warm_core_exited(&w, rows[i].status, rows[i].errnum, &text);
        if (again != rows[i].again || text.level != rows[i].level ||
            (text.level != WARM_QUIET && !strstr(text.text, rows[i].text)))
            fail_msg("%s: %d, %d %s", rows[i].says, again, text.level, text.text);
        assert_int_equal(w.phase, again ? WARM_IMPORTING : WARM_GIVEN_UP);
        warm_core_fini(&w);
    }
}

static void modules_are_left_out(void **state)
{
    struct warm_text text;
    struct warm_core w;
    (void)state;
    assert_int_equal(warm_core_init(&w, "a,b", NULL), 0);
    assert_int_equal(line(&w, "left-out a an open socket", &text), WARM_WARN);
    assert_non_null(strstr(text.text, "importing a leaves an open socket behind"));
    assert_int_equal(w.modules.count, 1);
    assert_null(w.modules.items[1]);
    (void)line(&w, "left-out c 2 more threads", &text);
    assert_int_equal(w.modules.count, 1);
    (void)line(&w, "left-out b 2 more threads", &text);
    assert_int_equal(w.modules.count, 0);
    assert_int_equal(line(&w, "ready 1 2 3", &text), WARM_INFO);
    assert_int_equal(line(&w, "stale /x.py", &text), WARM_INFO);
    assert_int_equal(w.phase, WARM_IMPORTING);
    warm_core_fini(&w);
}

/* Five deaths in a row without a worker are enough; a worker makes it forget them. */
static void one_that_keeps_dying(void **state)
{
    struct warm_text text;
    struct warm_core w;
    (void)state;
    assert_int_equal(warm_core_init(&w, "a", NULL), 0);
    for (int i = 0; i < 20; i++) {
        (void)line(&w, "ready 1 2 3", &text);
        warm_core_forked(&w);
        assert_true(warm_core_exited(&w, SIGKILL, 0, &text));
    }
    int lives = 0;
    do
        (void)line(&w, "ready 1 2 3", &text);
    while (warm_core_exited(&w, SIGKILL, 0, &text) && ++lives < 100);
    assert_int_equal(lives, 3);
    assert_int_equal(w.phase, WARM_GIVEN_UP);
    warm_core_fini(&w);

    /* One that dies while it imports has cost more: twice is enough. */
    assert_int_equal(warm_core_init(&w, "a", NULL), 0);
    for (lives = 0; warm_core_exited(&w, SIGKILL, 0, &text) && lives < 100; lives++)
        ;
    assert_int_equal(lives, 2);
    warm_core_fini(&w);
}

static void assert_kept(const struct warm_core *w, const char *want)
{
    struct buf b;

    buf_init(&b, 1000);
    assert_int_equal(warm_core_keep(w, &b), 0);
    assert_int_equal(buf_u8(&b, 0), 0);
    assert_string_equal((const char *)buf_data(&b), want);
    buf_fini(&b);
}

static void learns(void **state)
{
    struct warm_text text;
    struct warm_core w;
    (void)state;
    assert_int_equal(warm_core_init(&w, "auto", NULL), 0);
    const size_t usual = w.modules.count;
    (void)line(&w, "module numpy", &text);
    (void)line(&w, "module numpy", &text);
    (void)line(&w, "module ../../etc", &text);
    assert_int_equal(w.had.count, 1);
    assert_true(w.changed);
    warm_core_fini(&w);

    /* At the next start it is known, and what is new is added to it. */
    assert_int_equal(warm_core_init(&w, "auto", NULL), 0);
    assert_int_equal(warm_core_learned(&w, span_str("")), 0);
    assert_int_equal(
        warm_core_learned(&w, span_str("numpy\n../x\n\ntorch\n!rich\n!\n!-\nlast")), 0);
    assert_int_equal(w.modules.count, usual + 2);
    (void)line(&w, "module numpy", &text);
    (void)line(&w, "module rich", &text);
    (void)line(&w, "module torch", &text);
    assert_false(w.changed);
    (void)line(&w, "module new", &text);
    assert_true(w.changed);
    assert_kept(&w, "numpy\nlast\nnew\n!rich\n");
    warm_core_fini(&w);
}

/* What was learned and cannot be imported is not tried again; what the user or we
 * ourselves chose is. */
static void forgets(void **state)
{
    struct warm_text text;
    struct warm_core w;
    (void)state;
    assert_int_equal(warm_core_init(&w, "auto", NULL), 0);
    assert_int_equal(warm_core_learned(&w, span_str("a\nb\nc\nd")), 0);
    assert_int_equal(line(&w, "left-out a an open socket", &text), WARM_WARN);
    assert_int_equal(line(&w, "fails b ValueError: x", &text), WARM_WARN);
    assert_string_equal(text.text,
                        "--warm: the module b does not import (ValueError: x);"
                        " it is left out");
    (void)line(&w, "fails torch._dynamo OSError: x", &text);
    (void)line(&w, "fails unknown ValueError: x", &text);
    (void)line(&w, "importing c", &text);
    assert_true(warm_core_exited(&w, SIGSEGV, 0, &text));
    assert_kept(&w, "d\n!a\n!c\n~b\n~unknown\n");
    (void)line(&w, "importing d", &text);
    assert_true(warm_core_exited(&w, SIGKILL, 0, &text)); /* by somebody else */
    assert_kept(&w, "d\n!a\n!c\n~b\n~unknown\n");
    (void)line(&w, "importing torch", &text);
    assert_false(warm_core_exited(&w, SIGSEGV, 0, &text));
    warm_core_fini(&w);
}

/* With a module goes all that is below it; torch only when the script wants it so. */
static void drops_packages(void **state)
{
    struct warm_text text;
    struct warm_core w;
    (void)state;
    assert_int_equal(warm_core_init(&w, "auto", NULL), 0);
    const size_t usual = w.modules.count;
    assert_int_equal(
        warm_core_learned(&w, span_str("a\na.b\nab\nc.d\nc.d.e\nc\n!c.d\n~f")), 0);
    assert_int_equal(w.chosen, usual);
    assert_int_equal(w.modules.count, usual + 4);
    (void)line(&w, "never a", &text);
    assert_int_equal(w.modules.count, usual + 2);
    (void)line(&w, "module a.new", &text);
    (void)line(&w, "module c.d.new", &text);
    (void)line(&w, "module f", &text);
    assert_int_equal(w.had.count, 0);
    (void)line(&w, "never torch", &text);
    (void)line(&w, "never ../x", &text);
    assert_kept(&w, "ab\nc\n!c.d\n!a\n~f\n");
    (void)line(&w, "differs torch._dynamo", &text);
    assert_int_equal(w.chosen, usual - 2); /* torch._dynamo, and torch above: told */
    (void)line(&w, "differs torch", &text);
    (void)line(&w, "differs -", &text);
    assert_int_equal(w.chosen, 0);
    assert_kept(&w, "ab\nc\n!c.d\n!a\n!torch._dynamo\n!torch\n~f\n");
    warm_core_fini(&w);

    /* Nor is it imported at the next start. */
    assert_int_equal(warm_core_init(&w, "auto", NULL), 0);
    assert_int_equal(warm_core_learned(&w, span_str("ab\n!torch\n")), 0);
    assert_int_equal(w.chosen, 0);
    assert_string_equal(w.modules.items[0], "ab");
    warm_core_fini(&w);

    /* Names that the user chose are not learned about. */
    assert_int_equal(warm_core_init(&w, "a,a.b", NULL), 0);
    (void)line(&w, "differs a", &text);
    assert_int_equal(w.modules.count, 2);
    (void)line(&w, "never a", &text);
    assert_int_equal(w.modules.count, 1);
    assert_false(w.changed);
    warm_core_fini(&w);
}

/* A server that is ended because workers have waited long enough is followed by another
 * one, however often. */
static void workers_do_not_wait_for_ever(void **state)
{
    struct warm_text text;
    struct warm_core w;
    (void)state;
    assert_int_equal(warm_core_init(&w, "auto", NULL), 0);
    assert_int_equal(warm_core_learned(&w, span_str("a\nb")), 0);
    (void)line(&w, "fails b ValueError: x", &text);
    assert_false(w.left_out);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(line(&w, "needs a b.c", &text), WARM_WARN);
        assert_string_equal(text.text,
                            "--warm: a imports b.c, which must not be imported ahead "
                            "of this script; it is left out, too");
        assert_true(w.left_out);
        warm_core_late(&w, 5000, &text);
        assert_non_null(strstr(text.text, "have cost 5 s"));
        assert_true(warm_core_exited(&w, SIGKILL, 0, &text));
        assert_int_equal(text.level, WARM_QUIET);
        assert_false(w.left_out || w.late);
    }
    warm_core_fini(&w);
}

static void texts(void **state)
{
    struct warm_text text;
    struct warm_core w;
    (void)state;
    assert_int_equal(warm_core_init(&w, "", NULL), 0);
    assert_int_equal(line(&w, "ready 2710 299008 1956", &text), WARM_INFO);
    assert_string_equal(text.text,
                        "the warm interpreter is ready after 2.7 s; it holds "
                        "292 MB and 1956 modules");
    assert_int_equal(line(&w, "refused \x1b[31mred", &text), WARM_WARN);
    assert_null(strchr(text.text, 0x1b));
    (void)line(&w, "importing mine", &text);
    warm_core_slow(&w, 60000, &text);
    assert_string_equal(text.text, "--warm: the workers wait for the import of mine, "
                                   "which has taken 60 s so far");
    assert_int_equal(line(&w, "", &text), WARM_QUIET);
    assert_int_equal(line(&w, "nonsense", &text), WARM_QUIET);
    warm_hint(999, &text);
    assert_int_equal(text.level, WARM_QUIET);
    warm_hint(3400, &text);
    assert_non_null(strstr(text.text, "3.4 s"));
    assert_non_null(strstr(text.text, "--warm"));
    warm_core_fini(&w);
}

static uint64_t print_list(uint64_t print, const struct text_list *l)
{
    for (size_t i = 0; i < l->count; i++)
        print = print_bytes(print, l->items[i], strlen(l->items[i]) + 1);
    return print_bytes(print, &l->count, sizeof l->count);
}

/* Of all that the interpreter's lines can change. */
static uint64_t print_of(const struct warm_core *w)
{
    uint64_t print = print_list(0, &w->modules);

    print = print_list(print, &w->had);
    print = print_list(print, &w->never);
    print = print_list(print, &w->broken);
    print = print_bytes(print, &w->chosen, sizeof w->chosen);
    print = print_bytes(print, &w->left_out, sizeof w->left_out);
    print = print_bytes(print, &w->changed, sizeof w->changed);
    print = print_bytes(print, &w->phase, sizeof w->phase);
    print = print_bytes(print, w->importing, sizeof w->importing);
    print = print_bytes(print, w->reason, sizeof w->reason);
    return print_bytes(print, &w->deaths, sizeof w->deaths);
}

/* A line that there is no memory for changes nothing, and may be told again. */
static void out_of_memory(void **state)
{
    static const char *const lines[] = {
        "importing torch", "fails mine.broken No module named x",
        "module mine.new", "left-out mine.thread a thread",
        "never mine.more", "needs mine.other mine.more",
        "differs torch",   "ready 1 2 3",
        "stale /mine.py",
    };
    struct warm_core w;
    struct warm_text text;
    int rc;

    (void)state;
    assert_int_equal(warm_core_init(&w, "auto", NULL), 0);
    assert_int_equal(warm_core_learned(&w, span_str("mine.broken\nmine.thread\n")), 0);
    step_starves = true;
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        TAKE_STEP(rc, warm_core_line(&w, span_str(lines[i]), &text), print_of(&w));
        assert_int_equal(rc, 0);
    }
    step_starves = false;
    assert_int_equal(w.never.count, 4);
    assert_int_equal(w.broken.count, 1);
    assert_int_equal(w.had.count, 1);
    warm_core_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_of_modules),
        cmocka_unit_test(values_of_the_option),
        cmocka_unit_test(is_replaced_or_not),
        cmocka_unit_test(modules_are_left_out),
        cmocka_unit_test(one_that_keeps_dying),
        cmocka_unit_test(learns),
        cmocka_unit_test(forgets),
        cmocka_unit_test(drops_packages),
        cmocka_unit_test(workers_do_not_wait_for_ever),
        cmocka_unit_test(texts),
        cmocka_unit_test(out_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
