/* test_local_name.c - names of the agents' sockets: printed, read back, and everything
 * that is nearly one. */
#include "testing.h"

#include "status/core/local_name.h"

static void prints_and_reads(void **state)
{
    static const struct {
        struct local_name name;
        const char *text;
    } rows[] = {
        { { 0, 1, 0 }, "muster/0/1" },
        { { 1000, 4711, 0 }, "muster/1000/4711" },
        { { UINT32_MAX, INT32_MAX, 7 }, "muster/4294967295/2147483647/7" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char text[LOCAL_NAME_MAX];
        struct local_name back;

        assert_int_equal(local_name_print(&rows[i].name, text), strlen(rows[i].text));
        assert_string_equal(text, rows[i].text);
        assert_true(local_name_parse(span_str(text), &back));
        assert_memory_equal(&back, &rows[i].name, sizeof back);
    }
}

static void refuses(void **state)
{
    static const char *const rows[] = {
        "",
        "muster/",
        "muster/0",
        "muster/0/",
        "muster/0/0",
        "muster/0/01",
        "muster/00/1",
        "muster/-1/1",
        "muster/0/1/",
        "muster/0/1/0",
        "muster/0/1/8",
        "muster/0/1 ",
        "muster/0/1\n",
        "muster/4294967296/1",
        "muster/0/2147483648",
        "muster/0/99999999999999999999999",
        "Muster/0/1",
    };
    struct local_name n;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (local_name_parse(span_str(rows[i]), &n))
            fail_msg("\"%s\" was taken for a name", rows[i]);
}

#define LINE(flags, type, path)                                                        \
    "0000000000000000: 00000002 00000000 " flags " " type " 01 39283 " path

static void finds_it_in_the_table(void **state)
{
    static const struct {
        const char *line;
        bool want;
    } rows[] = {
        { LINE("00010000", "0001", "@muster/0/711"), true },
        { LINE("00010000", "0001", "@muster/0/711/2"), true },
        { LINE("00000000", "0001", "@muster/0/711"), false }, /* does not listen */
        { LINE("00010000", "0005", "@muster/0/711"), false },
        { LINE("00010000", "0001", "muster/0/711"), false }, /* a file */
        { LINE("00010000", "0001", "@@muster/0/711"), false },
        { LINE("00010000", "0001", ""), false },
        { "Num       RefCount Protocol Flags    Type St Inode Path", false },
        { "", false },
    };
    struct local_name n;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (local_name_of_line(span_str(rows[i].line), &n) != rows[i].want)
            fail_msg("\"%s\": want %d", rows[i].line, rows[i].want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prints_and_reads),
        cmocka_unit_test(refuses),
        cmocka_unit_test(finds_it_in_the_table),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
