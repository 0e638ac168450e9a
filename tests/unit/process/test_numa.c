/* test_numa.c - binding on machines that hwloc makes up, and one from a file tree. */
#include <hwloc.h>
#include <stdio.h>

#include "process/numa.h"
#include "testing.h"

static unsigned forbidden_below; /* CPUs under this number are not ours */

static bool allowed(unsigned cpu)
{
    return cpu >= forbidden_below;
}

static void load(const char *synthetic, struct numa_table *t)
{
    hwloc_topology_t topology;

    assert_int_equal(hwloc_topology_init(&topology), 0);
    assert_int_equal(hwloc_topology_set_synthetic(topology, synthetic), 0);
    assert_int_equal(hwloc_topology_load(topology), 0);
    assert_int_equal(numa_read(topology, allowed, t, NULL), 0);
    hwloc_topology_destroy(topology);
}

/* "0-2,4": as cpulist files have it. */
static void spell(const unsigned *cpus, int n, char *to, size_t size)
{
    to[0] = '\0';
    for (int i = 0; i < n;) {
        int k = i;

        while (k + 1 < n && cpus[k + 1] == cpus[k] + 1)
            k++;
        (void)snprintf(to + strlen(to), size - strlen(to), k > i ? "%s%u-%u" : "%s%u",
                       i ? "," : "", cpus[i], cpus[k]);
        i = k + 1;
    }
}

/* Two packages, each with two nodes of four cores with two threads; a cache for each
 * two cores. CPUs 0-31, numbered depth first. */
static const char two_by_two[] = "pack:2 numa:2 l3:2 core:2 pu:2";
/* One node of 3 + 2 cores: groups of unlike size cannot be said in one line, so the
 * first CPUs are taken away instead. */
static const char one_node[] = "pack:1 numa:1 l3:3 core:2 pu:2";

static const struct {
    const char *machine;
    enum numa_mode mode;
    unsigned nodes[4]; /* of each GPU */
    size_t n_gpus, gpu;
    const char *want;
    unsigned forbidden_below;
} rows[] = {
    { two_by_two, NUMA_NODE, { 0, 1, 2, 3 }, 4, 0, "0-7" },
    { two_by_two, NUMA_NODE, { 0, 1, 2, 3 }, 4, 3, "24-31" },
    { two_by_two, NUMA_NODE, { 0, 1, 2, 3 }, 4, 0, "5-7", 5 },
    { two_by_two, NUMA_SOCKET, { 0, 1, 2, 3 }, 4, 1, "0-15" },
    { two_by_two, NUMA_SOCKET, { 0, 1, 2, 3 }, 4, 2, "16-31" },
    { two_by_two, NUMA_SOCKET, { 0, 1, 2, 3 }, 4, 1, "12-15", 12 },
    { two_by_two, NUMA_EXCLUSIVE, { 0, 0, 1, 1 }, 4, 0, "0-3" },
    { two_by_two, NUMA_EXCLUSIVE, { 0, 0, 1, 1 }, 4, 1, "4-7" },
    { two_by_two, NUMA_EXCLUSIVE, { 1, 0, 1, 1 }, 4, 0, "8-11" }, /* 4 cores, 3 GPUs */
    { two_by_two, NUMA_EXCLUSIVE, { 1, 0, 1, 1 }, 4, 2, "12-13" },
    { two_by_two, NUMA_EXCLUSIVE, { 1, 0, 1, 1 }, 4, 3, "14-15" },
    { two_by_two, NUMA_EXCLUSIVE, { 0, 0 }, 2, 0, "3-5", 3 }, /* half a core counts */
    { two_by_two, NUMA_EXCLUSIVE, { 0, 0 }, 2, 1, "6-7", 3 },
    { two_by_two, NUMA_CORE_COMPLEX, { 2, 2, 2 }, 3, 0, "16-19" },
    { two_by_two, NUMA_CORE_COMPLEX, { 2, 2, 2 }, 3, 1, "20-23" },
    { two_by_two, NUMA_CORE_COMPLEX, { 2, 2, 2 }, 3, 2, "16-19" },
    { one_node, NUMA_CORE_COMPLEX, { 0, 0, 0 }, 3, 0, "4-7", 1 }, /* largest first */
    { one_node, NUMA_CORE_COMPLEX, { 0, 0, 0 }, 3, 2, "1-3", 1 },
};

static void test_modes(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct numa_table t;
        unsigned chosen[64];
        char got[128];
        int n;

        forbidden_below = rows[i].forbidden_below;
        load(rows[i].machine, &t);
        n = numa_choose(&t, rows[i].mode, rows[i].nodes, rows[i].n_gpus, rows[i].gpu,
                        chosen, NULL);
        assert_true(n > 0);
        spell(chosen, n, got, sizeof got);
        if (strcmp(got, rows[i].want) != 0)
            fail_msg("row %zu, %s: want %s, got %s", i, numa_mode_word(rows[i].mode),
                     rows[i].want, got);
        numa_table_fini(&t);
    }
    forbidden_below = 0;
}

static void test_refused(void **state)
{
    const unsigned nodes[] = { 0, 0, 0, 0, 0 };
    struct numa_table t;
    unsigned chosen[64];
    struct muster_error err;

    (void)state;
    load("pack:1 numa:1 core:4 pu:1", &t);
    assert_int_equal(numa_choose(&t, NUMA_NODE, nodes, 0, 0, chosen, &err),
                     MUSTER_EINVAL);
    assert_non_null(strstr(err.text, "there is no GPU number 0"));
    assert_int_equal(numa_choose(&t, NUMA_EXCLUSIVE, nodes, 5, 0, chosen, &err),
                     MUSTER_EINVAL);
    assert_non_null(strstr(err.text, "There are only 4 physical cores on NUMA node 0"));
    forbidden_below = 4;
    numa_table_fini(&t);
    load("pack:1 numa:1 core:4 pu:1", &t);
    assert_int_equal(numa_choose(&t, NUMA_SOCKET, nodes, 1, 0, chosen, &err),
                     MUSTER_EINVAL);
    assert_non_null(strstr(err.text, "Must bind to a non-empty set of CPU indices"));
    forbidden_below = 0;
    numa_table_fini(&t);
}

/* Every GPU's share together is the node, and no CPU is in two. */
static void test_exclusive_is_exclusive(void **state)
{
    const unsigned nodes[12] = { 0 };

    (void)state;
    for (size_t gpus = 1; gpus <= 6; gpus++) {
        struct numa_table t;
        unsigned chosen[64];
        uint64_t seen = 0;

        load(one_node, &t);
        for (size_t g = 0; g < gpus; g++) {
            const int n = numa_choose(&t, NUMA_EXCLUSIVE, nodes, gpus, g, chosen, NULL);

            for (int i = 0; i < n; i++) {
                assert_false(seen >> chosen[i] & 1);
                seen |= UINT64_C(1) << chosen[i];
            }
        }
        assert_int_equal(seen, 0xfff);
        numa_table_fini(&t);
    }
}

static void *fake_driver(void *ctx, const char *library, const char *name)
{
    (void)ctx, (void)library, (void)name;
    return NULL;
}

/* The real machine and no GPU: the words, and no crash. */
static void test_without_gpu(void **state)
{
    char *const envp[] = { NULL };
    const struct devices_machine p = { "/nonexistent", fake_driver, NULL, envp };
    struct cpu_mask mask = { 0 };
    struct muster_error err;

    (void)state;
    assert_true(numa_mask(&p, NUMA_NODE, 0, &mask, &err) < 0);
    assert_non_null(strstr(err.text, "Failed to apply NUMA binding"));
    assert_int_equal(numa_node_of("/nonexistent", "0000:00:00.0"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_modes),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_exclusive_is_exclusive),
        cmocka_unit_test(test_without_gpu),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
