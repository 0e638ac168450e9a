/* test_hosts_file.c - our full name from the hosts file, and when that is not beyond
 * doubt. The wanted names are what glibc and Python's socket.getfqdn() gave for these
 * files.
 */
#include "testing.h"

#include "net/core/hosts_file.h"

#define FILES_DNS "# who knows hosts\npasswd: files\nhosts:\tfiles dns\n"

static const struct {
    const char *says, *nsswitch, *hosts, *name, *want; /* NULL: ask the resolver */
} rows[] = {
    { "Debian's way", FILES_DNS, "127.0.0.1 localhost\n127.0.1.1 n1.lab.example n1\n",
      "n1", "n1.lab.example" },
    { "the alias has the dot", FILES_DNS, "10.0.0.7 n1 n1.lab.example n1.other\n", "n1",
      "n1.lab.example" },
    { "no dot at all", FILES_DNS, "10.0.0.7 n1 node1\n", "node1", "n1" },
    { "the address belongs to another line first", FILES_DNS,
      "127.0.0.1 localhost\n127.0.0.1 n1\n", "n1", "localhost" },
    { "letters of any case", FILES_DNS, "10.0.0.7 N1.lab N1\n", "n1", "N1.lab" },
    { "comments, tabs, no last newline", FILES_DNS,
      "#10.0.0.8 n1\n\n \t10.0.0.7\tn1.lab # n1\n::1 n1\r", "n1", "n1" },
    { "IPv6", FILES_DNS, "fd77::1 n1.lab n1\n::1 localhost\n", "n1", "n1.lab" },
    { "twice in a line", FILES_DNS, "10.0.0.7 n1 n1.lab n1\n", "n1", "n1.lab" },
    { "other services after files", "hosts: files mdns4 [NOTFOUND=return] dns\n",
      "10.0.0.7 n1.lab n1\n", "n1", "n1.lab" },
    { "two lines with the name", FILES_DNS, "10.0.0.7 n1\n10.0.0.8 n1\n", "n1", NULL },
    { "a name that is not there", FILES_DNS, "10.0.0.7 n2\n", "n1", NULL },
    { "an address that is none", FILES_DNS, "10.0.0.777 n1\n", "n1", NULL },
    { "only in a comment", FILES_DNS, "10.0.0.7 n2 # n1\n", "n1", NULL },
    { "::1 before 127.0.0.1", FILES_DNS, "::1 ip6\n127.0.0.1 n1\n", "n1", NULL },
    { "dns first", "hosts: dns files\n", "10.0.0.7 n1\n", "n1", NULL },
    { "a rule about files", "hosts: files [SUCCESS=continue] dns\n", "10.0.0.7 n1\n",
      "n1", NULL },
    { "no word about hosts", "passwd: files\n", "10.0.0.7 n1\n", "n1", NULL },
    { "nothing", "", "", "n1", NULL },
    { "a number", FILES_DNS, "10.0.0.7 10\n", "10", NULL },
    { "no name", FILES_DNS, "10.0.0.7 n1\n", "", NULL },
};

static void names(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char out[64] = "untouched";
        const bool found =
            hosts_fqdn(span_str(rows[i].nsswitch), span_str(rows[i].hosts),
                       rows[i].name, out, sizeof out);
        const char *want = rows[i].want ? rows[i].want : "untouched";

        if (found != (rows[i].want != NULL) || strcmp(out, want) != 0)
            fail_msg("%s: want %s, got %s", rows[i].says, want, out);
    }
}

static void a_name_too_long(void **state)
{
    char out[4] = "abc";

    (void)state;
    assert_false(hosts_fqdn(span_str(FILES_DNS), span_str("10.0.0.7 n1.lab n1\n"), "n1",
                            out, sizeof out));
    assert_string_equal(out, "abc");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(a_name_too_long),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
