/* test_interfaces.c - net/core/interfaces.c: what an address and a --net mean. */
#include "net/core/interfaces.h"
#include "testing.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#define V4(a, b, c, d)                                                                 \
    {                                                                                  \
        [10] = 0xff, [11] = 0xff, a, b, c, d                                           \
    }

/* Two networks, one that is down, and IPv6 with its link-local addresses. */
static struct interface machine[] = {
    { "lo", V4(127, 0, 0, 1), 96 + 8, true },
    { "eth0", V4(10, 1, 2, 3), 96 + 24, true },
    { "eth0", { 0xfe, 0x80, [15] = 7 }, 64, true },
    { "ib0", V4(192, 168, 7, 9), 96 + 16, true },
    { "ib0", { 0xfd, 0x77, [15] = 9 }, 64, true },
    { "eth1", V4(10, 1, 9, 9), 96 + 24, false },
    { "eth10", V4(172, 16, 0, 1), 96 + 12, true },
};
static const struct interfaces all = { machine, ARRAY_LEN(machine) };

static const struct {
    const char *net, *want; /* NULL: refused */
} rows[] = {
    { "eth0", "eth0" },
    { "lo", "lo" },
    { "eth10", "eth10" },
    { "192.168.7.9", "ib0" },
    { "192.168.0.0/16", "ib0" },
    { "192.168.7.200/25", NULL },
    { "192.168.7.0/25", "ib0" },
    { "10.1.0.0/16", "eth0" },
    { "10.1.2.3/32", "eth0" },
    { "0.0.0.0/0", "lo" },
    { "fd77::/16", "ib0" },
    { "fd77::9", "ib0" },
    { "::/0", "lo" },
    { "172.16.0.0/12", "eth10" },
    { "eth1", NULL }, /* it is down */
    { "10.1.9.0/24", NULL },
    { "eth", NULL },
    { "eth0 ", NULL },
    { "", NULL },
    { "10.9.0.0/16", NULL },
    { "10.1.0.0/33", NULL },
    { "10.1.0.0/", NULL },
    { "10.1.0.0/-1", NULL },
    { "10.1.0.0/1x", NULL },
    { "10.1.0.0/0016", NULL },
    { "fd77::/129", NULL },
    { "/16", NULL },
    { "0123456789012345678901234567890123456789012345678901234567890/8", NULL },
};

static void what_net_means(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const struct interface *got = NULL;
        struct muster_error err;
        const int rc = interface_chosen(&all, rows[i].net, &got, &err);

        if (rows[i].want && (rc != 0 || strcmp(got->name, rows[i].want) != 0))
            fail_msg("--net=%s: want %s, got %s", rows[i].net, rows[i].want,
                     rc ? err.text : got->name);
        if (!rows[i].want && rc != MUSTER_EINVAL)
            fail_msg("--net=%s: not refused but %s", rows[i].net, got->name);
    }
}

static void a_refusal_lists_what_there_is(void **state)
{
    const struct interface *got;
    struct interface many[300];
    struct muster_error err;

    (void)state;
    assert_int_equal(interface_chosen(&all, "ib1", &got, &err), MUSTER_EINVAL);
    assert_string_equal(
        err.text,
        "--net=ib1: there is no such interface, nor is it an address or a network like "
        "10.1.0.0/16. This machine has: lo 127.0.0.1/8, eth0 10.1.2.3/24, ib0 "
        "192.168.7.9/16, ib0 fd77::9/64, eth1 10.1.9.9/24 (down), eth10 172.16.0.1/12");
    assert_int_equal(interface_chosen(&all, "10.9.0.0/16", &got, &err), MUSTER_EINVAL);
    assert_non_null(strstr(err.text, "no interface has an address in it. This"));
    assert_int_equal(interface_chosen(&all, "eth1", &got, &err), MUSTER_EINVAL);
    assert_non_null(strstr(err.text, "that interface is down"));
    assert_int_equal(interface_chosen(&(struct interfaces){ 0 }, "x", &got, NULL),
                     MUSTER_EINVAL);
    for (size_t i = 0; i < ARRAY_LEN(many); i++)
        many[i] = machine[1];
    assert_int_equal(interface_chosen(&(struct interfaces){ many, ARRAY_LEN(many) },
                                      "ib1", &got, &err),
                     MUSTER_EINVAL);
    assert_string_equal(err.text + strlen(err.text) - 5, ", ...");
}

static void addresses(void **state)
{
    static const struct {
        const char *text, *again; /* NULL: no address */
        bool loopback;
    } texts[] = {
        { "10.1.2.3", "10.1.2.3", false },
        { "127.0.1.1", "127.0.1.1", true },
        { "::1", "::1", true },
        { "::ffff:10.1.2.3", "10.1.2.3", false },
        { "fe80::7%eth0", "fe80::7", false },
        { "10.1.2.3%eth0", NULL, false },
        { "10.1.2", NULL, false },
        { "node1", NULL, false },
        { "", NULL, false },
    };
    char text[IP_TEXT];
    uint8_t ip[16], also[16];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        assert_int_equal(ip_of_text(texts[i].text, ip), texts[i].again != NULL);
        if (!texts[i].again)
            continue;
        ip_text(ip, text);
        assert_string_equal(text, texts[i].again);
        assert_int_equal(ip_is_loopback(ip), texts[i].loopback);
    }
    struct sockaddr_in v4 = { .sin_family = AF_INET };

    assert_int_equal(inet_pton(AF_INET, "10.1.2.3", &v4.sin_addr), 1);
    assert_true(ip_of_sockaddr((const struct sockaddr *)&v4, ip));
    assert_true(ip_of_text("10.1.2.3", also));
    assert_memory_equal(ip, also, 16);
    assert_string_equal(interface_with(&all, ip)->name, "eth0");
    assert_true(ip_of_text("10.1.2.4", ip));
    assert_null(interface_with(&all, ip));
    assert_false(ip_of_sockaddr(&(struct sockaddr){ .sa_family = AF_UNIX }, also));
}

static void without_memory(void **state)
{
    (void)state;
    for (struct failing f = failing_first(); failing_next(&f);) {
        const struct interface *got;

        assert_int_equal(interface_chosen(&all, "ib1", &got, NULL), MUSTER_EINVAL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_net_means),
        cmocka_unit_test(a_refusal_lists_what_there_is),
        cmocka_unit_test(addresses),
        cmocka_unit_test(without_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
