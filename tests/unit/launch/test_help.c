/* test_help.c - texts made from the table: every option is in each of them. */
#include <stdio.h>

#include "launch/core/completion.h"
#include "launch/core/help.h"
#include "testing.h"

static char *text_of(int (*make)(struct buf *))
{
    struct buf b;
    char *text;

    buf_init(&b, SIZE_MAX);
    assert_int_equal(make(&b), 0);
    text = mem_strndup((const char *)buf_data(&b), buf_len(&b));
    assert_non_null(text);
    buf_fini(&b);
    return text;
}

static int make_help(struct buf *b)
{
    return help_text(b, "torchrun", 80, true);
}

static int make_narrow(struct buf *b)
{
    return help_text(b, "torchrun", 1, true);
}

static int make_man(struct buf *b)
{
    return help_man_page(b);
}

#define COMMANDS "run launch store"

static int make_bash(struct buf *b)
{
    return completion_script(b, "bash", COMMANDS);
}

static int make_zsh(struct buf *b)
{
    return completion_script(b, "zsh", COMMANDS);
}

static int make_fish(struct buf *b)
{
    return completion_script(b, "fish", COMMANDS);
}

static int make_tcsh(struct buf *b)
{
    return completion_script(b, "tcsh", COMMANDS);
}

/* Of the commands that muster has, and for the name torchrun, which has none. */
static void test_completion_is_for_both_names(void **state)
{
    int (*const makers[])(struct buf *) = { make_bash, make_zsh, make_fish, make_tcsh };
    struct buf b;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(makers); i++) {
        char *text = text_of(makers[i]);

        assert_non_null(strstr(text, COMMANDS));
        assert_non_null(strstr(text, "torchrun"));
        mem_free(text);
    }
    buf_init(&b, SIZE_MAX);
    assert_int_equal(completion_script(&b, "csh", ""), MUSTER_EINVAL);
    buf_fini(&b);
}

static void assert_has_all(const char *text, bool troff)
{
    for (size_t i = 0; i < options_count; i++) {
        char name[128] = "";

        for (const char *p = options_table[i].name; *p; p++)
            (void)snprintf(name + strlen(name), sizeof name - strlen(name), "%s%c",
                           troff && *p == '-' ? "\\" : "", *p);
        if (!strstr(text, name))
            fail_msg("%s is missing", name);
    }
}

static void test_every_option_is_everywhere(void **state)
{
    int (*const makers[])(struct buf *) = { make_help, make_narrow, make_bash, make_zsh,
                                            make_fish, make_tcsh,   make_man };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(makers); i++) {
        char *text = text_of(makers[i]);

        assert_has_all(text, makers[i] == make_man);
        mem_free(text);
    }
}

static int make_short(struct buf *b)
{
    return help_short(b, "torchrun", 80, true);
}

/* What fits on a screen, and names nothing that is not there. */
static void test_the_short_help_is_short(void **state)
{
    char *text = text_of(make_short);
    size_t lines = 0, options = 0;

    (void)state;
    for (const char *p = text; *p; p++) {
        const size_t n = strspn(p, "-abcdefghijklmnopqrstuvwxyz0123456789");
        bool known = false;

        lines += *p == '\n';
        if (strncmp(p, "\n  --", 5) != 0)
            continue;
        options++;
        for (size_t i = 0; i < options_count; i++)
            known = known || (strncmp(p + 5, options_table[i].name,
                                      strlen(options_table[i].name)) == 0);
        if (!known)
            fail_msg("no such option: %.30s", p + 3 + n);
    }
    assert_true(lines <= 30);
    assert_int_equal(options, 10);
    mem_free(text);
}

static void test_help_is_in_groups(void **state)
{
    char *text = text_of(make_help);

    (void)state;
    assert_memory_equal(text, "usage: torchrun [-h] [options] training_script ...\n",
                        50);
    assert_non_null(strstr(text, "\nfailures, restarts and the end:\n"));
    assert_non_null(strstr(text, "\n *--hang HANG "));
    assert_non_null(strstr(text, "\n  -r REDIRECTS, --redirects REDIRECTS\n"));
    assert_non_null(strstr(text, "\n  --start-method {spawn,fork,forkserver}, "
                                 "--start_method {spawn,fork,forkserver}\n"));
    for (const char *p = text; *p;) { /* Only what cannot be broken is wider. */
        const size_t n = strcspn(p, "\n");

        if (n > 78 && strncmp(p, "  -", 3) != 0 && strncmp(p, "Each", 4) != 0 &&
            strncmp(p, "Options", 7) != 0)
            fail_msg("too wide: %.*s", (int)n, p);
        p += n + (p[n] == '\n');
    }
    mem_free(text);
}

static void test_out_of_memory(void **state)
{
    (void)state;
    for (struct failing f = failing_first(); failing_next(&f);) {
        struct buf b;

        buf_init(&b, SIZE_MAX);
        const int a = help_text(&b, "p", 80, false) | make_short(&b);
        const int m = help_man_page(&b);
        const int c = make_bash(&b) | make_zsh(&b) | make_fish(&b) | make_tcsh(&b);

        assert_true(a == 0 || a == MUSTER_ENOMEM);
        assert_true(m == 0 || m == MUSTER_ENOMEM);
        assert_true(c == 0 || c == MUSTER_ENOMEM);
        buf_fini(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_option_is_everywhere),
        cmocka_unit_test(test_completion_is_for_both_names),
        cmocka_unit_test(test_the_short_help_is_short),
        cmocka_unit_test(test_help_is_in_groups),
        cmocka_unit_test(test_out_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
