/* Which library a process crashed in, from the kernel's log: process/core/crash_log.c.
 */
#include "testing.h"

#include <stdlib.h>

#include "process/core/crash_log.h"

#define SEGFAULT " segfault at 0 ip 00007f968b385ad8 sp 00007ffd493941c8 error 4 in "
#define MAPPING  "[167ad8,7f968b244000+156000]"

static const struct {
    const char *says, *log;
    const char *want; /* NULL: the log does not tell */
} rows[] = {
    { "a segfault",
      "<6>[  838.522557] python3[7244]:" SEGFAULT "libc.so.6" MAPPING
      " likely on CPU 1 (core 1, socket 0)\n<6>[  838.522572] Code: e1 ff <62> f3\n",
      "libc.so.6" },
    { "an older kernel",
      "<6>[  838.522557] python3[7244]:" SEGFAULT "libc-2.31.so[7f968b244000+156000]\n",
      "libc-2.31.so" },
    { "a division by zero",
      "<6>[  901.100000] traps: a.out[7244] trap divide error ip:401136 sp:7ffc "
      "error:0 "
      "in a.out[401000+1000]\n",
      "a.out" },
    { "a non-canonical address",
      "<6>[  901.100000] traps: pt main[7244] general protection fault ip:401 sp:7f "
      "error:0 in libtorch_cpu.so[401000+1000]\n",
      "libtorch_cpu.so" },
    { "an ARM",
      "<6>[  901.100000] a.out[7244]: unhandled level 2 translation fault (11) at 0x0, "
      "esr 0x92000006, in libfoo.so[aaaab000+1000]\n",
      "libfoo.so" },
    { "a kernel that tells who printed it",
      "<6>[  901.100000][ T7244] a.out[7244]:" SEGFAULT "x.so" MAPPING "\n", "x.so" },
    { "a log without times", "<6>a.out[7244]:" SEGFAULT "x.so" MAPPING "\n", "x.so" },
    { "a line without its end", "<6>a.out[7244]:" SEGFAULT "x.so" MAPPING, "x.so" },
    { "a name with blanks and brackets",
      "<6>[  901.100000] a.out[7244]:" SEGFAULT "a in [1]: b.so" MAPPING "\n",
      "a in [1]: b.so" },
    { "the newest of two",
      "<6>[  901.100000] a.out[7244]:" SEGFAULT "old.so" MAPPING "\n"
      "<6>[  902.100000] a.out[7244]:" SEGFAULT "new.so" MAPPING "\n",
      "new.so" },
    { "no mapping there (a jump to nowhere)",
      "<6>[  901.100000] a.out[7244]: segfault at 0 ip 0 sp 7ff error 14\n", NULL },
    { "another process", "<6>[  901.100000] a.out[72440]:" SEGFAULT "x.so" MAPPING "\n",
      NULL },
    { "another process long ago",
      "<6>[   99.100000] a.out[7244]:" SEGFAULT "x.so" MAPPING "\n", NULL },
    { "a process whose name is as the message about ours",
      "<6>[  901.100000] [7244] trap in [5]:" SEGFAULT "x.so" MAPPING "\n", NULL },
    { "a file whose name is as the message about ours",
      "<6>[  901.100000] a.out[5]:" SEGFAULT "[7244]: segfault in x.so" MAPPING "\n",
      NULL },
    { "a line whose beginning is cut off",
      "22557] a.out[7244]:" SEGFAULT "x.so" MAPPING "\n", NULL },
    { "an empty name", "<6>a.out[7244]:" SEGFAULT MAPPING "\n", NULL },
    { "a number beyond all pids",
      "<6>a.out[72440000000000000000000000]:" SEGFAULT "x.so" MAPPING "\n", NULL },
    { "nothing", "", NULL },
    { "newlines", "\n\n\n", NULL },
};

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct span where = span_str("untouched");
        const bool found = crash_log_find(span_str(rows[i].log), 7244, 100, &where);

        if (found != (rows[i].want != NULL) ||
            (found && !span_eq(where, span_str(rows[i].want))))
            fail_msg("%s: want %s, got %.*s", rows[i].says,
                     rows[i].want ? rows[i].want : "nothing", (int)where.n,
                     (const char *)where.p);
    }
}

/* Cut off anywhere, a message tells the same or nothing. */
static void test_cut(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        for (size_t n = strlen(rows[i].log); n > 0; n--) {
            char *copy = malloc(n); /* of its size alone, for the sanitizers */
            struct span where;

            assert_non_null(copy);
            memcpy(copy, rows[i].log, n);
            if (crash_log_find(span_of(copy, n), 7244, 100, &where))
                assert_true(where.n > 0);
            free(copy);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_cut),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
