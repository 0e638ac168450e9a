/* test_framework.c - templates of --env, and what --for gives a worker: variables and
 * arguments of each framework, as golden texts. */
#include "launch/core/framework.h"

#include "launch/core/derive.h"
#include "launch/core/env_template.h"

#include "testing.h"

static char *const no_env[] = { NULL };

static void config_init(struct launch_config *c, enum framework f)
{
    assert_int_equal(launch_config_init(c, NULL), 0);
    c->framework = f;
    c->nproc = 2;
    c->entry = ENTRY_EXEC;
    assert_int_equal(text_set(&c->script, "prog"), 0);
    assert_int_equal(text_set(&c->rdzv.run_id, "job 1"), 0);
}

static void add(struct text_list *l, const char *text)
{
    assert_int_equal(text_list_add(l, text, strlen(text)), 0);
}

/* Rank 3 of 4, on the second of two nodes. */
static struct worker_place place_of(const struct text_list *nodes)
{
    return (struct worker_place){ .group_rank = 1,
                                  .group_world_size = 2,
                                  .rank = 3,
                                  .world_size = 4,
                                  .local_rank = 1,
                                  .role_rank = 3,
                                  .role_world_size = 4,
                                  .master_addr = "10.0.0.1",
                                  .master_port = 29400,
                                  .restart_count = 2,
                                  .error_file = "",
                                  .hostname = "node2",
                                  .nodes = nodes };
}

static void two_nodes(struct text_list *nodes)
{
    add(nodes, "10.0.0.1 2 5001,5002");
    add(nodes, "fe80::2 2 6001,6002");
}

static void names_are_replaced(void **state)
{
    static const struct {
        const char *text, *want;
    } rows[] = {
        { "", "" },
        { "plain $ $$ $HOME ${} ${a.b} ${a:b} ${ rank} ${1}",
          "plain $ $$ $HOME ${} ${a.b} ${a:b} ${ rank} ${1}" },
        { "${rank}/${local_rank}/${node_rank}", "3/1/1" },
        { "${nnodes} ${world_size} ${local_world_size}", "2 4 2" },
        { "${master_addr}:${master_port}", "10.0.0.1:29400" },
        { "${hostname}-${restart}-${run_id}", "node2-2-job 1" },
        { "$${rank} $$${rank} x$${", "${rank} $${rank} x${" },
        { "${rank", "${rank" },
    };
    struct launch_config c;
    const struct worker_place p = place_of(NULL);

    (void)state;
    config_init(&c, FOR_NONE);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct buf b;

        buf_init(&b, SIZE_MAX);
        assert_int_equal(env_template_check("--env", rows[i].text, NULL), 0);
        assert_int_equal(env_template_expand(&b, rows[i].text, &c, &p), 0);
        assert_int_equal(buf_u8(&b, 0), 0);
        assert_string_equal((const char *)buf_data(&b), rows[i].want);
        buf_fini(&b);
    }
    launch_config_fini(&c);
}

static void unknown_names_are_refused(void **state)
{
    static const struct {
        const char *text, *says;
    } rows[] = {
        { "A=${rnk}",
          "--env A=${rnk}: there is no ${rnk} here, did you mean ${rank}?" },
        { "A=${worldsize}", "did you mean ${world_size}?" },
        { "A=${coordinator}", "there is no ${coordinator} here" },
        { "A=$${ok} ${HOME}", "there is no ${HOME} here\nThere are ${rank}" },
        { "=x", "not the name of a variable" },
        { "1A=x", "not the name of a variable" },
        { "A-B=x", "not the name of a variable" },
        { "", "not the name of a variable" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct text_list l = { 0 };
        struct muster_error err = { 0 };

        assert_int_equal(env_template_add(&l, "--env", span_str(rows[i].text), &err),
                         MUSTER_EINVAL);
        if (!strstr(err.text, rows[i].says))
            fail_msg("%s: %s", rows[i].text, err.text);
        assert_int_equal(l.count, 0);
    }
}

static void a_file_has_a_variable_on_each_line(void **state)
{
    struct text_list l = { 0 };
    struct muster_error err = { 0 };

    (void)state;
    assert_int_equal(env_template_add_file(
                         &l, "f", span_str("# no\nA=1\r\n\nB=${rank}\nC\nA=2"), &err),
                     0);
    assert_int_equal(l.count, 3);
    assert_string_equal(l.items[0], "A=2");
    assert_string_equal(l.items[1], "B=${rank}");
    assert_string_equal(l.items[2], "C");
    assert_int_equal(env_template_add_file(&l, "f", span_str("\nA=${x}\n"), &err),
                     MUSTER_EINVAL);
    assert_non_null(strstr(err.text, "--env-file=f: line 2: A=${x}: there is no ${x}"));
    text_list_fini(&l);
}

static const struct {
    enum framework of;
    const char *name, *value;
} golden[] = {
    { FOR_JAX, "JAX_COORDINATOR_ADDRESS", "10.0.0.1:5001" },
    { FOR_JAX, "OMPI_MCA_orte_hnp_uri", "0.0;tcp://10.0.0.1:5001" },
    { FOR_JAX, "OMPI_COMM_WORLD_SIZE", "4" },
    { FOR_JAX, "OMPI_COMM_WORLD_RANK", "3" },
    { FOR_JAX, "OMPI_COMM_WORLD_LOCAL_RANK", "1" },
    { FOR_TF, "TF_CONFIG",
      "{\"cluster\": {\"worker\": [\"10.0.0.1:5001\", \"10.0.0.1:5002\", "
      "\"[fe80::2]:6001\", \"[fe80::2]:6002\"]}, \"task\": {\"type\": \"worker\", "
      "\"index\": 3}}" },
    { FOR_MPI, "PMI_FD", "3" },
    { FOR_MPI, "PMI_RANK", "3" },
    { FOR_MPI, "PMI_SIZE", "4" },
    { FOR_MPI, "MPI_LOCALRANKID", "1" },
    { FOR_MPI, "HOROVOD_RANK", NULL },
    { FOR_HOROVOD, "PMI_FD", "3" },
    { FOR_HOROVOD, "HOROVOD_CONTROLLER", "mpi" },
    { FOR_HOROVOD, "HOROVOD_RANK", "3" },
    { FOR_HOROVOD, "HOROVOD_SIZE", "4" },
    { FOR_HOROVOD, "HOROVOD_LOCAL_RANK", "1" },
    { FOR_HOROVOD, "HOROVOD_LOCAL_SIZE", "2" },
    { FOR_HOROVOD, "HOROVOD_CROSS_RANK", "1" },
    { FOR_HOROVOD, "HOROVOD_CROSS_SIZE", "2" },
    { FOR_XGBOOST, "DMLC_TRACKER_URI", "10.0.0.1" },
    { FOR_XGBOOST, "DMLC_TRACKER_PORT", "5001" },
    { FOR_XGBOOST, "DMLC_NUM_WORKER", "4" },
    { FOR_XGBOOST, "DMLC_TASK_ID", "3" },
    { FOR_NONE, "PMI_FD", NULL },
    { FOR_NONE, "JAX_COORDINATOR_ADDRESS", NULL },
};

static void variables_of_each_framework(void **state)
{
    struct text_list nodes = { 0 };

    (void)state;
    two_nodes(&nodes);
    for (size_t i = 0; i < ARRAY_LEN(golden); i++) {
        const struct worker_place p = place_of(&nodes);
        struct launch_config c;
        struct text_list env;

        config_init(&c, golden[i].of);
        assert_int_equal(worker_env(&env, &c, &p, no_env, NULL), 0);
        const char *got = env_get(env.items, golden[i].name);
        if (!got != !golden[i].value || (got && strcmp(got, golden[i].value) != 0))
            fail_msg("--for=%s: %s=%s", framework_name(golden[i].of), golden[i].name,
                     got ? got : "(none)");
        text_list_fini(&env);
        launch_config_fini(&c);
    }
    text_list_fini(&nodes);
}

static void what_the_user_has_set_stays(void **state)
{
    char *const envp[] = { "JAX_COORDINATOR_ADDRESS=mine:1", "PMI_RANK=77", NULL };
    struct text_list nodes = { 0 }, env;
    struct worker_place p;
    struct launch_config c;
    struct buf kept;

    (void)state;
    two_nodes(&nodes);
    p = place_of(&nodes);
    config_init(&c, FOR_JAX);
    add(&c.env, "OMPI_COMM_WORLD_RANK=r${rank}");
    assert_int_equal(worker_env(&env, &c, &p, envp, NULL), 0);
    assert_string_equal(env_get(env.items, "JAX_COORDINATOR_ADDRESS"), "mine:1");
    assert_string_equal(env_get(env.items, "OMPI_COMM_WORLD_RANK"), "r3");
    text_list_fini(&env);
    buf_init(&kept, SIZE_MAX);
    assert_int_equal(framework_kept(&kept, &c, envp), 0);
    assert_int_equal(buf_u8(&kept, 0), 0);
    assert_string_equal((const char *)buf_data(&kept),
                        "JAX_COORDINATOR_ADDRESS, OMPI_COMM_WORLD_RANK");
    buf_fini(&kept);
    c.framework = FOR_MPI; /* An outer launcher's descriptor is none of ours. */
    assert_int_equal(worker_env(&env, &c, &p, envp, NULL), 0);
    assert_string_equal(env_get(env.items, "PMI_RANK"), "3");
    text_list_fini(&env);
    launch_config_fini(&c);
    text_list_fini(&nodes);
}

static void arguments_of_servers(void **state)
{
    static const struct {
        enum framework of;
        int64_t node;
        const char *extra, *want;
    } rows[] = {
        { FOR_VLLM, 0, NULL,
          "prog serve m --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --master-port "
          "5001" },
        { FOR_VLLM, 1, NULL,
          "prog serve m --nnodes 2 --node-rank 1 --master-addr 10.0.0.1 --master-port "
          "5001 "
          "--headless" },
        { FOR_VLLM, 1, "--master_addr=x",
          "prog serve m --master_addr=x --nnodes 2 --node-rank 1 --master-port 5001 "
          "--headless" },
        { FOR_VLLM, 1, "r${node_rank}",
          "prog serve m r1 --nnodes 2 --node-rank 1 --master-addr 10.0.0.1 "
          "--master-port "
          "5001 --headless" },
        { FOR_SGLANG, 1, NULL,
          "prog serve m --nnodes 2 --node-rank 1 --dist-init-addr 10.0.0.1:5001" },
        { FOR_NONE, 1, "${local_rank} ${rank}", "prog serve m 0 ${rank}" },
    };
    struct text_list nodes = { 0 };

    (void)state;
    two_nodes(&nodes);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct worker_place p = place_of(&nodes);
        struct launch_config c;
        struct text_list argv;
        char got[512] = "";

        config_init(&c, rows[i].of);
        c.nproc = 1;
        p.local_rank = 0;
        p.group_rank = rows[i].node;
        add(&c.args, "serve");
        add(&c.args, "m");
        if (rows[i].extra)
            add(&c.args, rows[i].extra);
        assert_int_equal(framework_check(&c, NULL), 0);
        assert_int_equal(worker_argv(&argv, &c, &p, NULL), 0);
        for (size_t k = 0; k < argv.count; k++) {
            (void)strncat(got, k ? " " : "", sizeof got - strlen(got) - 1);
            (void)strncat(got, argv.items[k], sizeof got - strlen(got) - 1);
        }
        assert_string_equal(got, rows[i].want);
        text_list_fini(&argv);
        launch_config_fini(&c);
    }
    text_list_fini(&nodes);
}

static void what_does_not_go_together(void **state)
{
    struct launch_config c;
    struct muster_error err = { 0 };

    (void)state;
    config_init(&c, FOR_VLLM);
    assert_int_equal(framework_check(&c, &err), MUSTER_EINVAL);
    assert_non_null(strstr(err.text, "--nproc-per-node is 2"));
    c.framework = FOR_MPI;
    assert_int_equal(text_set(&c.warm, ""), 0);
    assert_int_equal(framework_check(&c, &err), MUSTER_EINVAL);
    assert_non_null(strstr(err.text, "--warm"));
    c.framework = FOR_JAX;
    add(&c.args, "${rnk}");
    assert_int_equal(framework_check(&c, &err), MUSTER_EINVAL);
    assert_non_null(
        strstr(err.text, "argument: there is no ${rnk} here, did you mean"));
    launch_config_fini(&c);
}

static void nodes_are_checked(void **state)
{
    static const struct {
        const char *a, *b;
        bool good;
    } rows[] = {
        { "h 2 1", "h 2 1,2", true }, { "h 2 1", "h 1 1", false },
        { "h 2 1", "h 2 0", false },  { "h 2 1", "h 2 65536", false },
        { "h 2 1", "h 2 ", false },   { "h 2 1", "h 2", false },
        { "h 2 1", "", false },       { "h 2 1", "h\"x 2 1", false },
        { "h 2 1", "h -2 1", false }, { "h 2 1", " 2 1", false },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct text_list l = { 0 };
        struct muster_error err = { 0 };

        add(&l, rows[i].a);
        add(&l, rows[i].b);
        if ((framework_nodes_check(&l, 4, &err) == 0) != rows[i].good)
            fail_msg("%s, %s: %s", rows[i].a, rows[i].b, err.text);
        text_list_fini(&l);
    }
}

static void mappings(void **state)
{
    static const struct {
        const char *texts[4];
        const char *want;
    } rows[] = {
        { { "h 4 1" }, "(vector,(0,1,4))" },
        { { "h 2 1", "h 2 1", "h 2 1" }, "(vector,(0,3,2))" },
        { { "h 2 1", "h 2 1", "h 1 1" }, "(vector,(0,2,2),(2,1,1))" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct text_list l = { 0 };
        struct buf b;

        for (size_t k = 0; k < 4 && rows[i].texts[k]; k++)
            add(&l, rows[i].texts[k]);
        buf_init(&b, SIZE_MAX);
        assert_int_equal(framework_mapping(&b, &l), 0);
        assert_int_equal(buf_u8(&b, 0), 0);
        assert_string_equal((const char *)buf_data(&b), rows[i].want);
        buf_fini(&b);
        text_list_fini(&l);
    }
}

static void out_of_memory(void **state)
{
    struct text_list nodes = { 0 };
    struct launch_config c;

    (void)state;
    two_nodes(&nodes);
    config_init(&c, FOR_TF);
    add(&c.args, "${rank}");
    add(&c.env, "A=${world_size}");
    const struct worker_place p = place_of(&nodes);
    for (struct failing f = failing_first(); failing_next(&f);) {
        struct text_list env = { 0 }, argv = { 0 };
        int rc = worker_env(&env, &c, &p, no_env, NULL);

        assert_int_equal(rc, failing_rc(&f));
        rc = worker_argv(&argv, &c, &p, NULL);
        assert_int_equal(rc, failing_rc(&f));
        text_list_fini(&env);
        text_list_fini(&argv);
    }
    launch_config_fini(&c);
    text_list_fini(&nodes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_replaced),
        cmocka_unit_test(unknown_names_are_refused),
        cmocka_unit_test(a_file_has_a_variable_on_each_line),
        cmocka_unit_test(variables_of_each_framework),
        cmocka_unit_test(what_the_user_has_set_stays),
        cmocka_unit_test(arguments_of_servers),
        cmocka_unit_test(what_does_not_go_together),
        cmocka_unit_test(nodes_are_checked),
        cmocka_unit_test(mappings),
        cmocka_unit_test(out_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
