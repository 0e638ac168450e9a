/* test_cgroup.c - control groups of both versions, on trees that the test makes up. */
#include "process/cgroup.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "testing.h"

static char root[64];

static void put(const char *path, const char *text)
{
    char full[512];

    (void)snprintf(full, sizeof full, "%s%s", root, path);
    for (char *p = full + 1; *p; p++)
        if (*p == '/') {
            *p = '\0';
            (void)mkdir(full, 0700);
            *p = '/';
        }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int begin(void **state)
{
    (void)state;
    (void)snprintf(root, sizeof root, "/tmp/muster-cgroup-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *st, int type,
                      struct FTW *where)
{
    (void)st;
    (void)type;
    (void)where;
    return remove(path);
}

static int end(void **state)
{
    (void)state;
    return nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

#define UNIFIED "29 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"

static void version_2(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/jobs/one\n");
    put("/proc/self/mountinfo", "20 1 0:5 / /proc rw - proc proc rw\n" UNIFIED);
    assert_int_equal(cgroup_oom_kills(root), -1); /* no such file */
    assert_int_equal(cgroup_cpus(root), 0);
    put("/sys/fs/cgroup/jobs/one/memory.events",
        "low 0\nhigh 4\nmax 9\noom 3\noom_kill 2\noom_group_kill 7\n");
    put("/sys/fs/cgroup/jobs/one/cpu.max", "max 100000\n");
    assert_int_equal(cgroup_oom_kills(root), 2);
    assert_int_equal(cgroup_cpus(root), 0);
    put("/sys/fs/cgroup/jobs/cpu.max", "350000 100000\n"); /* its parent's limit */
    assert_int_equal(cgroup_cpus(root), 4);
    put("/sys/fs/cgroup/jobs/one/cpu.max", "50000 100000\n");
    assert_int_equal(cgroup_cpus(root), 1);
    assert_int_equal(cgroup_processes(root), 0);
    put("/sys/fs/cgroup/jobs/one/pids.max", "max\n");
    assert_int_equal(cgroup_processes(root), 0);
    put("/sys/fs/cgroup/jobs/pids.max", "2048\n");
    assert_int_equal(cgroup_processes(root), 2048);
}

/* Version 1 has the controllers, a bare version 2 is beside it. */
static void version_1(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "4:memory:/job\n2:cpu,cpuacct:/job\n0::/\n");
    put("/proc/self/mountinfo",
        "33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "34 31 0:31 / /sys/fs/cgroup/memory rw shared:1 - cgroup cgroup rw,memory\n"
        "35 31 0:32 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    put("/sys/fs/cgroup/memory/job/memory.oom_control",
        "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n");
    put("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
    assert_int_equal(cgroup_oom_kills(root), 5);
    assert_int_equal(cgroup_cpus(root), 0);
    put("/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "200000\n");
    assert_int_equal(cgroup_cpus(root), 2);
}

/* A container that sees its own group mounted as the root. */
static void cut_off(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "4:memory:/docker/abc/sub\n");
    put("/proc/self/mountinfo",
        "34 31 0:31 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
    put("/sys/fs/cgroup/memory/sub/memory.oom_control", "oom_kill 1\n");
    put("/sys/fs/cgroup/memory/memory.oom_control", "oom_kill 3\n");
    assert_int_equal(cgroup_oom_kills(root), 1);
    put("/proc/self/cgroup", "4:memory:/elsewhere\n");
    assert_int_equal(cgroup_oom_kills(root), 3);
    /* A group whose name only begins like it, and what would be taken for it. */
    put("/proc/self/cgroup", "4:memory:/docker/abcdef\n");
    put("/sys/fs/cgroup/memorydef/memory.oom_control", "oom_kill 9\n");
    assert_int_equal(cgroup_oom_kills(root), 3);
}

static void nonsense(void **state)
{
    static const char *const texts[] = {
        "", "\n", ":", "::", "0::", "0::\n", "x:y\n", "0::/../../..\n", "4:memory:\n"
    };

    (void)state;
    assert_int_equal(cgroup_oom_kills(root), -1); /* not a file there */
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        put("/proc/self/cgroup", texts[i]);
        put("/proc/self/mountinfo", UNIFIED "1 2 3\n - \n1 2 3 4 5 - cgroup\n");
        assert_int_equal(cgroup_oom_kills(root), -1);
        assert_int_equal(cgroup_cpus(root), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(version_2, begin, end),
        cmocka_unit_test_setup_teardown(version_1, begin, end),
        cmocka_unit_test_setup_teardown(cut_off, begin, end),
        cmocka_unit_test_setup_teardown(nonsense, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
