/* test_worker_env.c - macros, environment, arguments and names of a worker. */
#include <stdio.h>

#include "base/buf.h"
#include "base/py/template.h"
#include "launch/core/options.h"
#include "launch/core/worker_env.h"
#include "logs/core/prefix_lines.h"
#include "testing.h"

static void test_macros(void **state)
{
    static const char *const rows[][2] = {
        { "${local_rank}", "3" },
        { "$local_rank", "3" },
        { "a$local_rank-b", "a3-b" },
        { "$local_rank2", "$local_rank2" },
        { "${local_rank}2", "32" },
        { "$$", "$" },
        { "$$local_rank", "$local_rank" },
        { "$$$local_rank", "$3" },
        { "$zz", "$zz" },
        { "${", "${" },
        { "${local_rank", "${local_rank" },
        { "$", "$" },
        { "$ x", "$ x" },
        { "${}", "${}" },
        { "${ local_rank}", "${ local_rank}" },
        { "$LOCAL_RANK", "$LOCAL_RANK" },
        { "$9", "$9" },
        { "", "" },
        { "${zz}${local_rank}", "${zz}3" },
        { "$\xc3\xa9$local_rank", "$\xc3\xa9"
                                  "3" },
    };
    const struct template_value m[] = { { "local_rank", "3" } };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct buf b;

        buf_init(&b, SIZE_MAX);
        assert_int_equal(template_expand(&b, rows[i][0], m, 1), 0);
        assert_int_equal(buf_u8(&b, 0), 0);
        assert_string_equal((const char *)buf_data(&b), rows[i][1]);
        buf_fini(&b);
    }
}

static void make(struct launch_config *c, enum launch_entry entry)
{
    static const char *const args[] = { "-v", "r${local_rank}", "$$" };

    assert_int_equal(launch_config_init(c, NULL), 0);
    c->entry = entry;
    c->nproc = 2;
    c->max_restarts = 4;
    assert_int_equal(text_set(&c->script, "s$local_rank.py"), 0);
    if (entry != ENTRY_EXEC)
        assert_int_equal(text_set(&c->python, "/p/python"), 0);
    for (size_t i = 0; i < ARRAY_LEN(args); i++)
        assert_int_equal(text_list_add(&c->args, args[i], strlen(args[i])), 0);
}

static void assert_argv(enum launch_entry entry, bool launch, const char *want)
{
    struct launch_config c;
    struct text_list argv;
    char got[1024] = "";

    make(&c, entry);
    c.local_rank_arg = launch;
    assert_int_equal(
        worker_argv(&argv, &c, &(struct worker_place){ .local_rank = 1 }, NULL), 0);
    assert_null(argv.items[argv.count]);
    for (size_t i = 0; i < argv.count; i++) {
        (void)strncat(got, i ? "|" : "", sizeof got - strlen(got) - 1);
        (void)strncat(got, strchr(argv.items[i], '\n') ? "PROGRAM" : argv.items[i],
                      sizeof got - strlen(got) - 1);
    }
    assert_string_equal(got, want);
    text_list_fini(&argv);
    launch_config_fini(&c);
}

static void test_argv(void **state)
{
    (void)state;
    assert_argv(ENTRY_SCRIPT, false, "/p/python|-u|s1.py|-v|r1|$");
    assert_argv(ENTRY_MODULE, false, "/p/python|-u|-m|s1.py|-v|r1|$");
    assert_argv(ENTRY_EXEC, false, "s$local_rank.py|-v|r1|$");
    assert_argv(ENTRY_RUN_PATH, false, "/p/python|-u|-c|PROGRAM|s1.py|-v|r1|$");
    assert_argv(ENTRY_SCRIPT, true, "/p/python|-u|s1.py|--local-rank=1|-v|r1|$");
}

static const struct worker_place place = {
    .group_rank = 1,
    .group_world_size = 2,
    .rank = 3,
    .world_size = 4,
    .local_rank = 1,
    .role_rank = 2,
    .role_world_size = 3,
    .master_addr = "h",
    .master_port = 29500,
    .restart_count = 1,
    .use_agent_store = true,
    .error_file = "/e",
};

static const char *get(const struct text_list *env, const char *name)
{
    const char *v = env_get(env->items, name);

    return v ? v : "(none)";
}

static void test_env(void **state)
{
    static const char *const want[][2] = {
        { "RANK", "3" },
        { "LOCAL_RANK", "1" },
        { "GROUP_RANK", "1" },
        { "ROLE_RANK", "2" },
        { "ROLE_NAME", "default" },
        { "LOCAL_WORLD_SIZE", "2" },
        { "WORLD_SIZE", "4" },
        { "GROUP_WORLD_SIZE", "2" },
        { "ROLE_WORLD_SIZE", "3" },
        { "MASTER_ADDR", "h" },
        { "MASTER_PORT", "29500" },
        { "TORCHELASTIC_RESTART_COUNT", "1" },
        { "TORCHELASTIC_MAX_RESTARTS", "4" },
        { "TORCHELASTIC_RUN_ID", "none" },
        { "TORCHELASTIC_USE_AGENT_STORE", "True" },
        { "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1" },
        { "TORCHELASTIC_ERROR_FILE", "/e" },
        { "TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT" },
    };
    char *const envp[] = { (char *)"RANK=77", (char *)"HOME=/h", (char *)"RANKS=5",
                           (char *)"OMP_NUM_THREADS=", NULL };
    struct launch_config c;
    struct text_list env;

    (void)state;
    make(&c, ENTRY_EXEC);
    assert_int_equal(worker_env(&env, &c, &place, envp, NULL), 0);
    for (size_t i = 0; i < ARRAY_LEN(want); i++)
        assert_string_equal(get(&env, want[i][0]), want[i][1]);
    assert_int_equal(env.count, ARRAY_LEN(want) + 2);
    assert_string_equal(env.items[0], "RANK=3"); /* in its old place */
    assert_string_equal(get(&env, "RANKS"), "5");
    assert_string_equal(get(&env, "OMP_NUM_THREADS"), "(none)");
    text_list_fini(&env);
    launch_config_fini(&c);
}

static void test_env_of_the_agent_counts(void **state)
{
    char *const envp[] = { (char *)"TORCH_NCCL_ASYNC_ERROR_HANDLING=3",
                           (char *)"TORCHELASTIC_SIGNALS_TO_HANDLE=old",
                           (char *)"CUDA_VISIBLE_DEVICES=4,5", NULL };
    struct launch_config c;
    struct text_list env;
    struct worker_place p = place;

    (void)state;
    make(&c, ENTRY_EXEC);
    c.set_omp = true;
    p.timer_file = "/t";
    p.error_file = "";
    p.use_agent_store = false;
    assert_int_equal(worker_env(&env, &c, &p, envp, NULL), 0);
    assert_string_equal(get(&env, "TORCH_NCCL_ASYNC_ERROR_HANDLING"), "3");
    assert_string_equal(get(&env, "TORCHELASTIC_SIGNALS_TO_HANDLE"),
                        "SIGTERM,SIGINT,SIGHUP,SIGQUIT");
    assert_string_equal(get(&env, "CUDA_VISIBLE_DEVICES"), "4,5");
    assert_string_equal(get(&env, "OMP_NUM_THREADS"), "1");
    assert_string_equal(get(&env, "TORCHELASTIC_TIMER_FILE"), "/t");
    assert_string_equal(get(&env, "TORCHELASTIC_ERROR_FILE"), "");
    assert_string_equal(get(&env, "TORCHELASTIC_USE_AGENT_STORE"), "False");
    text_list_fini(&env);
    launch_config_fini(&c);
}

/* The interface for gloo, TensorPipe and (with --net) NCCL; what the user has set, even
 * to nothing, stays. */
static void test_network(void **state)
{
    static const struct {
        const char *interface, *net, *set;
        const char *gloo, *tp, *nccl;
    } rows[] = {
        { NULL, NULL, "A=", "(none)", "(none)", "(none)" },
        { "", NULL, "A=", "(none)", "(none)", "(none)" },
        { "eth0", NULL, "A=", "eth0", "eth0", "(none)" },
        { "eth0", "10.1.0.0/16", "A=", "eth0", "eth0", "=eth0" },
        { "eth0", "eth0", "NCCL_SOCKET_IFNAME=ib", "eth0", "eth0", "ib" },
        { "eth0", "eth0", "GLOO_SOCKET_IFNAME=ib0", "ib0", "eth0", "=eth0" },
        { "eth0", NULL, "GLOO_SOCKET_IFNAME=", "", "eth0", "(none)" },
        { "eth0", NULL, "TP_SOCKET_IFNAME=lo", "eth0", "lo", "(none)" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char *const envp[] = { (char *)rows[i].set, NULL };
        struct worker_place p = place;
        struct launch_config c;
        struct text_list env;

        make(&c, ENTRY_EXEC);
        assert_int_equal(text_set(&c.net, rows[i].net), 0);
        p.interface = rows[i].interface;
        assert_int_equal(worker_env(&env, &c, &p, envp, NULL), 0);
        assert_string_equal(get(&env, "GLOO_SOCKET_IFNAME"), rows[i].gloo);
        assert_string_equal(get(&env, "TP_SOCKET_IFNAME"), rows[i].tp);
        assert_string_equal(get(&env, "NCCL_SOCKET_IFNAME"), rows[i].nccl);
        text_list_fini(&env);
        launch_config_fini(&c);
    }
}

static void test_virtual_local_rank(void **state)
{
    static const struct {
        const char *devices; /* NULL: variable not set */
        int64_t local_rank;
        const char *want;     /* NULL: refused */
        const char *hip;      /* another variable; NULL: not set */
        const char *hip_want; /* HIP_VISIBLE_DEVICES of the worker; NULL: not set */
    } rows[] = {
        { NULL, 1, "1" },
        { "CUDA_VISIBLE_DEVICES=4, 5 ", 1, "5" },
        { "CUDA_VISIBLE_DEVICES=GPU-a,MIG-b", 0, "GPU-a" },
        { "CUDA_VISIBLE_DEVICES=", 0, "" },
        { "CUDA_VISIBLE_DEVICES=4", 1, NULL },
        { "CUDA_VISIBLE_DEVICES=4,5", 1, "7", "HIP_VISIBLE_DEVICES=6, 7", "7" },
        { "CUDA_VISIBLE_DEVICES=4,5", 1, "5", "HIP_VISIBLE_DEVICES=", "" },
        { "CUDA_VISIBLE_DEVICES=4,5", 1, NULL, "HIP_VISIBLE_DEVICES=6" },
        { "HIP_VISIBLE_DEVICES=2,3", 0, "2", NULL, "2" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char *const envp[] = { (char *)(uintptr_t)rows[i].devices,
                               (char *)(uintptr_t)rows[i].hip, NULL };
        struct worker_place p = place;
        struct launch_config c;
        struct text_list env;
        struct muster_error err;
        int rc;

        make(&c, ENTRY_EXEC);
        c.virtual_local_rank = true;
        p.local_rank = rows[i].local_rank;
        rc = worker_env(&env, &c, &p, envp, &err);
        assert_int_equal(rc, rows[i].want ? 0 : MUSTER_EINVAL);
        if (rc == 0) {
            assert_string_equal(get(&env, "CUDA_VISIBLE_DEVICES"), rows[i].want);
            assert_string_equal(get(&env, "HIP_VISIBLE_DEVICES"),
                                rows[i].hip_want ? rows[i].hip_want : "(none)");
            assert_string_equal(get(&env, "LOCAL_RANK"), "0");
            text_list_fini(&env);
        } else { /* The list that was used is named. */
            assert_non_null(
                strstr(err.text, rows[i].hip ? rows[i].hip : rows[i].devices));
        }
        launch_config_fini(&c);
    }
}

static void test_names(void **state)
{
    struct launch_config c;

    (void)state;
    make(&c, ENTRY_SCRIPT);
    assert_string_equal(worker_report_name(&c), "s$local_rank.py");
    assert_string_equal(worker_binary(&c), "/p/python");
    assert_int_equal(text_set(&c.script, "-1"), 0);
    assert_string_equal(worker_report_name(&c), "r${local_rank}");
    c.python_is_custom = true;
    assert_string_equal(worker_report_name(&c), "/p/python");
    c.entry = ENTRY_RUN_PATH;
    assert_string_equal(worker_report_name(&c), "run_script_path");
    c.entry = ENTRY_EXEC;
    assert_string_equal(worker_report_name(&c), "-1");
    launch_config_fini(&c);
}

static void test_prefix(void **state)
{
    static const char *const rows[][2] = {
        { NULL, "[default1]:" },
        { "", "[default1]:" },
        { "<${rank}/$local_rank/${role_name}> ", "<3/1/default> " },
        { "${hostname}$hostname:", "node7node7:" },
        { "$$$x", "$$x" },
    };
    struct launch_config c;

    (void)state;
    make(&c, ENTRY_SCRIPT);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct buf b;

        buf_init(&b, SIZE_MAX);
        assert_int_equal(text_set(&c.prefix_template, rows[i][0]), 0);
        assert_int_equal(line_prefix(&b, c.prefix_template, c.role, 3, 1, "node7"), 0);
        assert_int_equal(buf_u8(&b, 0), 0);
        assert_string_equal((const char *)buf_data(&b), rows[i][1]);
        buf_fini(&b);
    }
    launch_config_fini(&c);
}

static void test_out_of_memory(void **state)
{
    struct launch_config c;
    char *const envp[] = { (char *)"A=1", (char *)"RANK=2", NULL };

    (void)state;
    make(&c, ENTRY_RUN_PATH);
    c.virtual_local_rank = true;
    for (struct failing f = failing_first(); failing_next(&f);) {
        struct text_list env = { 0 }, argv = { 0 };
        int rc = worker_env(&env, &c, &place, envp, NULL);

        assert_int_equal(rc, failing_rc(&f));
        if (rc == 0)
            assert_string_equal(env.items[0], "A=1");
        rc = worker_argv(&argv, &c, &(struct worker_place){ 0 }, NULL);
        assert_int_equal(rc, failing_rc(&f));
        if (rc == 0)
            assert_true(argv.count > 1 && !argv.items[argv.count]);
        text_list_fini(&env);
        text_list_fini(&argv);
    }
    launch_config_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_macros),
        cmocka_unit_test(test_argv),
        cmocka_unit_test(test_env),
        cmocka_unit_test(test_env_of_the_agent_counts),
        cmocka_unit_test(test_network),
        cmocka_unit_test(test_virtual_local_rank),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_prefix),
        cmocka_unit_test(test_out_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
