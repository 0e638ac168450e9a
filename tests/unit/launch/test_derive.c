/* test_derive.c - from options to the launch configuration: torch's checks and words.
 */
#include <stdio.h>

#include "base/err.h"
#include "launch/core/derive.h"
#include "testing.h"

struct machine {
    char warned[2048];
};

static int count_devices(void *ctx, const char *word, int64_t *n,
                         struct muster_error *err)
{
    (void)ctx;
    if (strcmp(word, "cpu") == 0) {
        *n = 6;
        return 0;
    }
    return err_set(err, MUSTER_EINVAL, "Cuda is not available.");
}

static bool is_file(void *ctx, const char *path)
{
    (void)ctx;
    return strcmp(path, "afile") == 0;
}

static bool is_dir(void *ctx, const char *path)
{
    (void)ctx;
    return strcmp(path, "adir") == 0 || strcmp(path, "/") == 0;
}

static int64_t most_processes(void *ctx, const char **limit)
{
    (void)ctx;
    *limit = "kernel.pid_max";
    return 32768;
}

static void warn(void *ctx, enum derive_warning what, const char *text)
{
    (void)what;
    struct machine *m = ctx;

    (void)strncat(m->warned, text, sizeof m->warned - strlen(m->warned) - 1);
    (void)strncat(m->warned, "|", sizeof m->warned - strlen(m->warned) - 1);
}

/* Words end with NULL; those that hold '=' and begin with a capital are variables. */
struct said {
    const char *words[8];
};

static int derive(struct launch_config *c, const struct said *said, bool launch,
                  struct machine *m, struct muster_error *err)
{
    char *argv[9], *envp[9];
    size_t argc = 0, envc = 0;
    struct options o;
    struct derive_machine ports = { count_devices, is_file, warn,   m,
                                    envp,          { 0 },   is_dir, most_processes };

    for (size_t i = 0; i < ARRAY_LEN(said->words) && said->words[i]; i++) {
        char *w = (char *)(uintptr_t)said->words[i];

        if (strchr(w, '=') && *w >= 'A' && *w <= 'Z')
            envp[envc++] = w;
        else
            argv[argc++] = w;
    }
    envp[envc] = NULL;
    *m = (struct machine){ 0 };
    for (uint8_t i = 0; i < 16; i++)
        ports.random[i] = (uint8_t)(i * 17);
    const struct options_input in = { argv, argc, envp, launch };
    if (options_parse(&o, &in, err) != OPTIONS_FINE)
        return err->code;
    return derive_config(c, &o, launch, &ports, err);
}

static const struct {
    struct said said;
    const char *error; /* first line */
    bool launch;
} refused[] = {
    { { { "--nnodes=2:1", "x" } },
      "min_nodes must be > 0 and <= max_nodes, got min_nodes=2, max_nodes=1" },
    { { { "--nnodes=0", "x" } },
      "min_nodes must be > 0 and <= max_nodes, got min_nodes=0, max_nodes=0" },
    { { { "--max-restarts=-1", "x" } }, "max_restarts must be >= 0" },
    { { { "--nproc-per-node=x", "x" } }, "Unsupported nproc_per_node value: x" },
    { { { "--nproc-per-node=gpu", "x" } }, "Cuda is not available." },
    { { { "--rdzv-conf=a", "x" } },
      "The rendezvous configuration option 'a' must have a value specified." },
    { { { "--rdzv-conf=a=1,", "x" } },
      "The rendezvous configuration string must be in format "
      "<key1>=<value1>,...,<keyN>=<valueN>." },
    { { { "--local-ranks-filter=0,x", "x" } },
      "--local_ranks_filter must be a comma-separated list of integers e.g. "
      "--local_ranks_filter=0,1,2" },
    { { { "--logs-specs=foo", "x" } },
      "Could not find entrypoint under 'torchrun.logs_specs[foo]' key" },
    { { { "-r4", "-t9", "x" } },
      "4 does not match: <^[0123]$> or <^(\\d:[0123],)*(\\d:[0123])$>" },
    { { { "-t", "10:1", "x" } },
      "10:1 does not match: <^[0123]$> or <^(\\d:[0123],)*(\\d:[0123])$>" },
    { { { "-r", "0:1,", "x" } },
      "0:1, does not match: <^[0123]$> or <^(\\d:[0123],)*(\\d:[0123])$>" },
    { { { "-r", "", "x" } },
      " does not match: <^[0123]$> or <^(\\d:[0123],)*(\\d:[0123])$>" },
    { { { "--log-dir=afile", "x" } }, "log_dir: afile is a file" },
    { { { "--shutdown-timeout=-1", "x" } },
      "shutdown_timeout must be non-negative, got -1" },
    { { { "--log-attempts=0", "x" } },
      "--log-attempts=0: give how many of the last attempts' log directories to keep, "
      "1 or more" },
    { { { "--restart-grace=5x", "x" } },
      "--restart-grace=5x: give a time, at most 30 days: 500ms, 90s, 10m, 1h30m" },
    { { { "--restart-grace=5", "x" } },
      "--restart-grace=5: 5 what? Add the unit: 5s, 5m or 5h" },
    { { { "--hang=10", "x" } }, "--hang=10: 10 what? Add the unit: 10s, 10m or 10h" },
    { { { "--restart-grace=5s:stop", "x" } },
      "--restart-grace=5s:stop: give a time, at most 30 days: 500ms, 90s, 10m, "
      "1h30m" },
    { { { "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=q", "x" } },
      "invalid literal for int() with base 10: 'q'" },
    { { { "--no-python", "-m", "x" } },
      "Don't use both the '--no-python' flag and the '--module' flag at the same "
      "time." },
    { { { "--rdzv-conf=run_id=3", "x" } },
      "got multiple values for keyword argument 'run_id'" },
    { { { "--rdzv-backend=", "x" } },
      "The rendezvous backend name must be a non-empty string." },
    { { { "--no-python", "x" } },
      "When using the '--no-python' flag, you must also set the '--use-env' flag.",
      true },
    /* What could only be waited for in vain. */
    { { { "--standalone", "--nnodes=2", "x" } },
      "--standalone is for one machine, but --nnodes=2 waits for 2 nodes" },
    { { { "--standalone", "--nnodes=3:4", "x" } },
      "--standalone is for one machine, but --nnodes=3:4 waits for 3 nodes" },
    { { { "--nproc-per-node=32768", "x" } },
      "--nproc-per-node=32768: this machine cannot have more than 32768 processes "
      "(kernel.pid_max)" },
    { { { "--report=nodir/r.json", "x" } },
      "--report=nodir/r.json: there is no directory nodir" },
    { { { "--progress-file=/no/p", "x" } },
      "--progress-file=/no/p: there is no directory /no" },
    /* Of two mistakes torch's first. */
    { { { "--standalone", "--nnodes=2", "--rdzv-conf=run_id=3", "x" } },
      "got multiple values for keyword argument 'run_id'" },
    { { { "--log-dir=afile", "--nnodes=2:1", "x" } },
      "min_nodes must be > 0 and <= max_nodes, got min_nodes=2, max_nodes=1" },
    { { { "--no-python", "-m", "--rdzv-conf=a", "x" } },
      "The rendezvous configuration option 'a' must have a value specified." },
};

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
        struct launch_config c;
        struct machine m;
        struct muster_error err = { 0 };
        const int rc = derive(&c, &refused[i].said, refused[i].launch, &m, &err);

        err.text[strcspn(err.text, "\n")] = '\0';
        if (rc != MUSTER_EINVAL || strcmp(err.text, refused[i].error) != 0)
            fail_msg("want %s\n got %d %s", refused[i].error, rc, err.text);
    }
}

static void test_restart_grace(void **state)
{
    static const struct {
        struct said said;
        uint64_t ms;
    } rows[] = {
        { { { "x" } }, 30000 },
        { { { "--shutdown-timeout=3", "x" } }, 3000 },
        { { { "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=4", "x" } }, 4000 },
        { { { "--shutdown-timeout=0", "x" } }, 0 },
        { { { "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=-4", "x" } }, 0 },
        /* Whoever saves for minutes when told to stop does not save in a restart. */
        { { { "--shutdown-timeout=600", "x" } }, 30000 },
        { { { "--shutdown-timeout=3", "--restart-grace=1m30s", "x" } }, 90000 },
        { { { "--restart-grace=500ms", "x" } }, 500 },
        { { { "MUSTER_RESTART_GRACE=5s", "x" } }, 5000 },
        { { { "--restart-grace=0", "x" } }, 0 },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct launch_config c;
        struct machine m;
        struct muster_error err = { 0 };

        assert_int_equal(derive(&c, &rows[i].said, false, &m, &err), 0);
        if (c.restart_grace_ms != rows[i].ms)
            fail_msg("%s: %lu ms", rows[i].said.words[0],
                     (unsigned long)c.restart_grace_ms);
        launch_config_fini(&c);
    }
}

static void test_log_attempts(void **state)
{
    static const struct {
        struct said said;
        int64_t attempts;
    } rows[] = {
        { { { "x" } }, LOG_ATTEMPTS },
        { { { "--log-dir=l", "x" } }, 0 },
        { { { "--log-dir=l", "--log-attempts=5", "x" } }, 5 },
        { { { "MUSTER_LOG_ATTEMPTS=7", "x" } }, 7 },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct launch_config c;
        struct machine m;
        struct muster_error err = { 0 };

        assert_int_equal(derive(&c, &rows[i].said, false, &m, &err), 0);
        assert_int_equal(c.log_attempts, rows[i].attempts);
        launch_config_fini(&c);
    }
}

static void test_one_node_alone(void **state)
{
    const struct said said = { { "--rdzv-id=me", "--master-addr=q", "x.py" } };
    struct launch_config c;
    struct machine m;
    struct muster_error err;

    (void)state;
    assert_int_equal(derive(&c, &said, false, &m, &err), 0);
    assert_string_equal(c.rdzv.backend, "c10d");
    assert_string_equal(c.rdzv.endpoint, "localhost:0");
    assert_string_equal(c.rdzv.run_id, "00112233-4455-4677-8899-aabbccddeeff");
    assert_string_equal(m.warned, "");
    assert_int_equal(c.nproc, 1);
    assert_int_equal(c.entry, ENTRY_SCRIPT);
    assert_null(c.python);
    assert_null(params_get(&c.rdzv, "rank"));
    launch_config_fini(&c);
}

/* Near the limits that test_refused() has. */
static void test_not_hopeless(void **state)
{
    static const struct said rows[] = {
        { { "--standalone", "--nnodes=1:3", "x" } },
        { { "--nproc-per-node=32767", "x" } },
        { { "--report=r.json", "--progress-file=/p", "x" } },
        { { "--report=adir/r.json", "x" } },
        { { "--report=", "--progress-file=", "x" } },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct launch_config c;
        struct machine m;
        struct muster_error err = { 0 };

        if (derive(&c, &rows[i], false, &m, &err) != 0)
            fail_msg("row %zu: %s", i, err.text);
        launch_config_fini(&c);
    }
}

/* Only where other machines could be meant. */
static void test_meeting_here(void **state)
{
    static const struct {
        struct said said;
        bool warns;
    } rows[] = {
        { { { "--rdzv-backend=c10d", "--nnodes=2", "x" } }, true },
        { { { "--rdzv-backend=c10d", "--nnodes=1:2", "x" } }, true },
        { { { "--rdzv-backend=c10d", "x" } }, false },
        { { { "--rdzv-backend=c10d", "--nnodes=2", "--rdzv-endpoint=localhost", "x" } },
          false },
        { { { "--standalone", "--nnodes=1:2", "x" } }, false },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct launch_config c;
        struct machine m = { "" };
        struct muster_error err = { 0 };

        assert_int_equal(derive(&c, &rows[i].said, false, &m, &err), 0);
        if ((strncmp(m.warned, "the nodes meet at localhost:29400", 33) == 0) !=
            rows[i].warns)
            fail_msg("row %zu: %s", i, m.warned);
        launch_config_fini(&c);
    }
}

static void test_static(void **state)
{
    const struct said said = { { "--nnodes=2", "--node-rank=1", "--rdzv-conf=rank=7",
                                 "--nproc-per-node=cpu", "--master-addr=[::1]",
                                 "PYTHON_EXEC=/p", "-m", "x" } };
    struct launch_config c;
    struct machine m;
    struct muster_error err;

    (void)state;
    assert_int_equal(derive(&c, &said, false, &m, &err), 0);
    assert_string_equal(c.rdzv.backend, "static");
    assert_string_equal(c.rdzv.endpoint, "[::1]:29500");
    assert_string_equal(c.rdzv.run_id, "none");
    assert_int_equal(params_get(&c.rdzv, "rank")->number, 1);
    assert_int_equal(params_get(&c.rdzv, "timeout")->number, 900);
    assert_int_equal(c.rdzv.min_nodes, 2);
    assert_int_equal(c.nproc, 6);
    assert_true(c.set_omp);
    assert_non_null(strstr(m.warned, "Setting OMP_NUM_THREADS"));
    assert_string_equal(c.python, "/p");
    assert_int_equal(c.entry, ENTRY_MODULE);
    launch_config_fini(&c);
}

static void test_warnings_and_lists(void **state)
{
    const struct said said = { { "--rdzv-backend=c10d", "--rdzv-id=", "--node-rank=2",
                                 "--duplicate-stdout-filters=a,,b,zz",
                                 "--duplicate-stderr-filters=", "-r0:1,2:3",
                                 "--local-ranks-filter=1, 3", "x" } };
    struct launch_config c;
    struct machine m;
    struct muster_error err;

    (void)state;
    assert_int_equal(derive(&c, &said, true, &m, &err), 0);
    assert_string_equal(
        m.warned,
        "master_addr is only used for static rdzv_backend and when rdzv_endpoint is "
        "not "
        "specified.|node_rank is only used for static rdzv_backend. It will be ignored "
        "for rdzv_backend=c10d.|config has no run_id, generated a random run_id: "
        "88962710305976587138789898786303743|");
    assert_int_equal(c.stdout_needles.count, 2);
    assert_string_equal(c.stdout_needles.items[0], "a,b");
    assert_string_equal(c.stdout_needles.items[1], "zz");
    assert_int_equal(c.stderr_needles.count, 1);
    assert_string_equal(c.stderr_needles.items[0], "");
    assert_int_equal(stream_map_get(&c.redirects, 0), STREAM_OUT);
    assert_int_equal(stream_map_get(&c.redirects, 1), STREAM_NONE);
    assert_int_equal(stream_map_get(&c.redirects, 2), STREAM_BOTH);
    assert_int_equal(stream_map_get(&c.redirects, 12), STREAM_NONE);
    assert_false(rank_filter_shows(&c.filter, 0));
    assert_true(rank_filter_shows(&c.filter, 3));
    assert_true(c.local_rank_arg);
    launch_config_fini(&c);
}

static void test_out_of_memory(void **state)
{
    const struct said said = { { "--nnodes=2", "--rdzv-conf=a=1,b=2", "-r0:1",
                                 "--duplicate-stdout-filters=a,b",
                                 "--local-ranks-filter=1,2", "x", "y" } };

    (void)state;
    for (struct failing f = failing_first(); failing_next(&f);) {
        struct launch_config c;
        struct machine m;
        struct muster_error err = { 0 };
        const int rc = derive(&c, &said, false, &m, &err);

        assert_int_equal(rc, failing_rc(&f));
        if (rc == 0)
            launch_config_fini(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),       cmocka_unit_test(test_restart_grace),
        cmocka_unit_test(test_log_attempts),  cmocka_unit_test(test_not_hopeless),
        cmocka_unit_test(test_meeting_here),  cmocka_unit_test(test_one_node_alone),
        cmocka_unit_test(test_static),        cmocka_unit_test(test_warnings_and_lists),
        cmocka_unit_test(test_out_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
