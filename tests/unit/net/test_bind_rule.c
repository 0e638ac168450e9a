/* test_bind_rule.c - net/core/bind_rule.c: all of its input, and what always holds. */
#include "net/core/bind_rule.h"
#include "testing.h"

static const struct {
    const char *says;
    struct bind_view v;
    enum bind_scope want;
} rows[] = {
    { "one node, localhost", { .numeric = true, .loopback = true }, BIND_LOOPBACK },
    { "one node whose name leads to 127.0.1.1", { .loopback = true }, BIND_LOOPBACK },
    { "one node, an address of its own",
      { .numeric = true, .found = true },
      BIND_FOUND },
    { "several, an address of ours",
      { .many = true, .numeric = true, .found = true },
      BIND_FOUND },
    { "several, our name with loopback beside it",
      { .many = true, .loopback = true, .found = true },
      BIND_FOUND },
    { "several on this machine",
      { .many = true, .numeric = true, .loopback = true },
      BIND_LOOPBACK },
    { "several, we are told localhost in a pod",
      { .many = true, .numeric = true, .loopback = true, .private_name = true },
      BIND_ALL },
    { "several, our name leads to loopback here",
      { .many = true, .loopback = true },
      BIND_ALL },
    { "several, behind NAT", { .many = true, .numeric = true }, BIND_ALL },
};

static void table(void **state)
{
    const char *why;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const enum bind_scope got = bind_rule(&rows[i].v, &why);

        if (got != rows[i].want)
            fail_msg("%s: want %d, got %d (%s)", rows[i].says, (int)rows[i].want,
                     (int)got, why);
    }
}

/* One node that leads to loopback never listens outside; an address that was found is
 * always taken; and nothing is bound to loopback that does not lead there. */
static void always(void **state)
{
    const char *why;

    (void)state;
    for (unsigned bits = 0; bits < 32; bits++) {
        const struct bind_view v = { bits & 1, bits & 2, bits & 4, bits & 8,
                                     bits & 16 };
        const enum bind_scope got = bind_rule(&v, &why);

        assert_non_null(why);
        assert_true((got == BIND_FOUND) == v.found);
        if (got == BIND_LOOPBACK)
            assert_true(v.loopback);
        if (v.loopback && !v.many)
            assert_true(got != BIND_ALL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table),
        cmocka_unit_test(always),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
