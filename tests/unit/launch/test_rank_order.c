/* test_rank_order.c - --rank-order, from words and environment to a number. */
#include "launch/core/rank_order.h"

#include "testing.h"

#include <stdio.h>

static void numbers_come_from_where_the_user_said(void **state)
{
    static const struct {
        const char *order, *variable, *conf;
        int64_t node_rank;
        const char *want; /* the conf that comes out; NULL: refused */
    } rows[] = {
        { NULL, "A=1", "a=b", 3, "a=b" },
        { "node", "A=1", "a=b", 3, "a=b" },
        { "given", "A=1", "", 3, "node_order=3" },
        { "given", "A=1", "a=b", 0, "a=b,node_order=0" },
        { "given", "A=1", "", -1, NULL },
        { "slurm", "SLURM_NODEID=7", "", 0, "node_order=7" },
        { "slurm", "SLURM_NODEID=x", "", 0, NULL },
        { "slurm", "A=1", "", 0, NULL },
        { "index", "JOB_COMPLETION_INDEX=12", "", 0, "node_order=12" },
        { "index", "HOSTNAME=train-worker-4", "", 0, "node_order=4" },
        { "index", "HOSTNAME=train", "", 0, NULL },
        { "index", "HOSTNAME=train-", "", 0, NULL },
        { "index", "HOSTNAME=train-99999999999", "", 0, NULL },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char variable[64];
        char *env[] = { variable, NULL };
        struct options o = { .rank_order = rows[i].order,
                             .rdzv_conf = rows[i].conf,
                             .node_rank = { true, rows[i].node_rank } };
        struct rank_order_text text;
        struct muster_error err = { 0 };
        int rc;

        (void)snprintf(variable, sizeof variable, "%s", rows[i].variable);
        rc = rank_order_apply(&o, env, &text, &err);
        if ((rc == 0) != (rows[i].want != NULL))
            fail_msg("row %zu: rc %d, %s", i, rc, err.text);
        if (rc == 0)
            assert_string_equal(o.rdzv_conf, rows[i].want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_come_from_where_the_user_said),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
