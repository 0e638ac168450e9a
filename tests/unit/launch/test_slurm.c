/* test_slurm.c - from Slurm's variables to a rendezvous. */
#include "launch/core/slurm.h"

#include "testing.h"

#define STEP(nodes, tasks, layout, id, list)                                           \
    {                                                                                  \
        "SLURM_JOB_ID=4711", "SLURM_STEP_ID=2", "SLURM_STEP_NUM_NODES=" nodes,         \
            "SLURM_STEP_NUM_TASKS=" tasks, "SLURM_STEP_TASKS_PER_NODE=" layout,        \
            "SLURM_NODEID=" id, "SLURM_STEP_NODELIST=" list, NULL                      \
    }

static struct options parse(const char *const *words, char *const *envp)
{
    struct options_input in = { .argv = (char *const *)(const void *)words,
                                .envp = envp };
    struct options o;

    while (words[in.argc])
        in.argc++;
    assert_int_equal(options_parse(&o, &in, NULL), OPTIONS_FINE);
    return o;
}

static void first_host(void **state)
{
    static const struct {
        const char *list, *want; /* NULL: refused */
    } rows[] = {
        { "node1", "node1" },
        { "node1,node2", "node1" },
        { "node[1-3]", "node1" },
        { "gpu[03-05,7],x9", "gpu03" },
        { "gpu[7,03-05]", "gpu7" },
        { "rack[0-1]n[10-12].local", "rack0n10.local" },
        { "a-b[1]", "a-b1" },
        { "", NULL },
        { ",x", NULL },
        { "node[1-3", NULL },
        { "node]1", NULL },
        { "0123456789abcdef0123456789abcdef", NULL }, /* longer than the room */
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char host[32] = "";
        const int rc = slurm_first_host(rows[i].list, host, sizeof host);

        if ((rc == 0) != (rows[i].want != NULL))
            fail_msg("%s: rc %d", rows[i].list, rc);
        if (rc == 0)
            assert_string_equal(host, rows[i].want);
    }
}

static void the_nodes_of_a_step_form_a_group(void **state)
{
    static const char *const words[] = { "--nproc-per-node", "4", "t.py", NULL };
    char *env[] = STEP("3", "3", "1(x3)", "2", "node[08-10]");
    struct options o = parse(words, env);
    struct slurm_texts texts;

    (void)state;
    assert_true(slurm_applies(&o, env));
    assert_int_equal(slurm_apply(&o, env, &texts, NULL), 0);
    assert_string_equal(o.nnodes, "3");
    assert_string_equal(o.rdzv_backend, "c10d");
    assert_string_equal(o.rdzv_id, "slurm-4711.2");
    assert_string_equal(o.rdzv_conf, "node_order=2,munge=auto,is_host=false");
    assert_memory_equal(o.rdzv_endpoint, "node08:", 7);
}

static void what_the_user_says_wins(void **state)
{
    static const char *const words[] = {
        "--rdzv-id",    "mine", "--rdzv-conf", "is_host=true,join_timeout=9",
        "--nnodes=2:4", "t.py", NULL
    };
    char *env[] = STEP("3", "3", "1(x3)", "1", "a,b,c");
    struct options o = parse(words, env);
    struct slurm_texts texts;

    (void)state;
    assert_int_equal(slurm_apply(&o, env, &texts, NULL), 0);
    assert_string_equal(o.nnodes, "2:3"); /* More than the step has cannot come. */
    assert_string_equal(o.rdzv_id, "mine");
    assert_string_equal(o.rdzv_conf,
                        "is_host=true,join_timeout=9,node_order=1,munge=auto");
}

static void when_it_is_none_of_our_business(void **state)
{
    static const char *const rows[][5] = {
        { "--standalone", "t.py" },           { "--rdzv-backend", "c10d", "t.py" },
        { "--rdzv-endpoint", "h:1", "t.py" }, { "--master-addr", "h", "t.py" },
        { "--master-port", "1", "t.py" },     { "--node-rank", "1", "t.py" },
        { "--nnodes", "1", "t.py" },
    };
    static const char *const plain[] = { "t.py", NULL };
    char *step[] = STEP("3", "3", "1(x3)", "2", "node[1-3]");
    char *batch[] = { "SLURM_JOB_ID=1", "SLURM_NODEID=0", "SLURM_NNODES=3", NULL };
    char *single[] = STEP("1", "1", "1", "0", "node1");
    struct options o;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        o = parse(rows[i], step);
        if (slurm_applies(&o, step))
            fail_msg("%s: applied", rows[i][0]);
    }
    o = parse(plain, batch);
    assert_false(slurm_applies(&o, batch));
    assert_false(slurm_applies(&o, single));
}

static void contradictions_are_refused(void **state)
{
    static const char *const plain[] = { "t.py", NULL };
    static const char *const four[] = { "--nnodes", "4", "t.py", NULL };
    struct {
        const char *const *words;
        const char *says;
        char *env[8];
    } rows[] = {
        { plain, "4 tasks on 1 nodes (4 on each)", STEP("1", "4", "4", "0", "n") },
        { plain, "--ntasks-per-node=1", STEP("2", "4", "2(x2)", "0", "n[1-2]") },
        { four, "has 3 nodes", STEP("3", "3", "1(x3)", "2", "n[1-3]") },
        { plain, "SLURM_NODEID is \"3\"", STEP("3", "3", "1(x3)", "3", "n[1-3]") },
        { plain, "SLURM_NODEID is \"x\"", STEP("3", "3", "1(x3)", "x", "n[1-3]") },
        { plain, "SLURM_STEP_NUM_NODES is \"-1\"", STEP("-1", "3", "1", "0", "n") },
        { plain, "SLURM_STEP_NODELIST is \"n[\"", STEP("3", "3", "1", "0", "n[") },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct options o = parse(rows[i].words, rows[i].env);
        struct slurm_texts texts;
        struct muster_error err;

        assert_true(slurm_applies(&o, rows[i].env));
        assert_int_equal(slurm_apply(&o, rows[i].env, &texts, &err), MUSTER_EINVAL);
        if (!strstr(err.text, rows[i].says))
            fail_msg("want \"%s\" in: %s", rows[i].says, err.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_host),
        cmocka_unit_test(the_nodes_of_a_step_form_a_group),
        cmocka_unit_test(what_the_user_says_wins),
        cmocka_unit_test(when_it_is_none_of_our_business),
        cmocka_unit_test(contradictions_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
