/* test_peer_uid.c - net/peer_uid.c: whose process is at the other end, and that nobody
 * is told once it has let go. */
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/peer_uid.h"
#include "testing.h"

/* A connection over loopback: ends[0] has accepted it. */
static void connect_pair(int ends[2])
{
    struct sockaddr_in a = { .sin_family = AF_INET };
    socklen_t n = sizeof a;
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(listener, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&a, &n), 0);
    ends[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(ends[1], (struct sockaddr *)&a, sizeof a), 0);
    ends[0] = accept(listener, NULL, NULL);
    assert_true(ends[0] >= 0);
    (void)close(listener);
}

/* How often this process has read a file. */
static long files_read(void)
{
    FILE *f = fopen("/proc/self/io", "re");
    char line[64];
    long n = -1;

    while (f && n < 0 && fgets(line, sizeof line, f))
        (void)sscanf(line, "syscr: %ld", &n);
    if (f)
        (void)fclose(f);
    return n;
}

static void ours(void **state)
{
    uid_t uid = 12345;
    int ends[2];

    (void)state;
    connect_pair(ends);
    assert_int_equal(peer_uid(ends[0], &uid), PEER_HERE);
    assert_int_equal(uid, geteuid());
    (void)close(ends[0]);
    (void)close(ends[1]);
}

/* Said something and went: the kernel would say that it was root's. */
static void closed(void **state)
{
    uid_t uid = 12345;
    int ends[2];

    (void)state;
    connect_pair(ends);
    assert_int_equal(send(ends[1], "x", 1, 0), 1);
    (void)close(ends[1]);
    assert_int_equal(peer_uid(ends[0], &uid), PEER_UNKNOWN);
    (void)close(ends[0]);
}

/* The same with a reset: there is no trace of it, which is not to say that it was on
 * another machine. */
static void reset(void **state)
{
    const struct linger now = { .l_onoff = 1 };
    uid_t uid = 12345;
    int ends[2];

    (void)state;
    connect_pair(ends);
    assert_int_equal(send(ends[1], "x", 1, 0), 1);
    assert_int_equal(setsockopt(ends[1], SOL_SOCKET, SO_LINGER, &now, sizeof now), 0);
    (void)close(ends[1]);
    assert_int_equal(peer_uid(ends[0], &uid), PEER_UNKNOWN);
    (void)close(ends[0]);
}

/* A list of all sockets of the machine is not read for it: an agent that others connect
 * to and leave by the hundred would do nothing else. */
static void closed_costs_no_more(void **state)
{
    long reads[4];
    uid_t uid;
    int ends[2];

    (void)state;
    connect_pair(ends);
    reads[0] = files_read();
    (void)peer_uid(ends[0], &uid);
    reads[1] = files_read();
    (void)close(ends[1]);
    reads[2] = files_read();
    (void)peer_uid(ends[0], &uid);
    reads[3] = files_read();
    (void)close(ends[0]);
    if (reads[0] < 0)
        skip();
    assert_int_equal(reads[3] - reads[2], reads[1] - reads[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ours),
        cmocka_unit_test(closed),
        cmocka_unit_test(reset),
        cmocka_unit_test(closed_costs_no_more),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
