/* test_scheduler.c - from the variables that schedulers set, as recorded, to a
 * rendezvous; and what contradicts itself. */
#include "launch/core/scheduler.h"

#include <stdio.h>

#include "testing.h"

#define MOST 10

static const struct row {
    const char *says, *options[4];
    const char *env[MOST];
    const char *hostname, *hosts;
    const char *want; /* "endpoint host|nnodes|id|conf", NULL: nothing is filled in */
    const char *error;
} rows[] = {
    { "nothing is around us", { "x" }, { "HOME=/" }, "h", NULL, NULL, NULL },
    /* PBS, as pbsdsh starts a task on each host */
    { "PBS, second host",
      { "x" },
      { "PBS_NODEFILE=/f", "PBS_JOBID=12.srv", "PBS_TASKNUM=3", "PBS_NODENUM=1" },
      "n2.cluster",
      "n1\nn1\nn2\nn2\nn3\n",
      "n1|3|pbs-12.srv|node_order=1,is_host=false",
      NULL },
    { "PBS, first host",
      { "--nnodes=2:3", "x" },
      { "PBS_NODEFILE=/f", "PBS_JOBID=12.srv", "PBS_TASKNUM=1" },
      "n1",
      "n1.cluster\nn2.cluster\nn1.cluster\nn2.cluster\n",
      "n1.cluster|2:2|pbs-12.srv|node_order=0,is_host=true",
      NULL },
    { "PBS, the script itself",
      { "x" },
      { "PBS_NODEFILE=/f", "PBS_JOBID=12.srv", "PBS_TASKNUM=1" },
      "n1",
      "n1\nn2\n",
      NULL,
      NULL },
    { "PBS, one host",
      { "x" },
      { "PBS_NODEFILE=/f", "PBS_JOBID=12.srv", "PBS_TASKNUM=2" },
      "n1",
      "n1\nn1\n",
      NULL,
      NULL },
    { "PBS, another host",
      { "x" },
      { "PBS_NODEFILE=/f", "PBS_JOBID=12.srv", "PBS_TASKNUM=2" },
      "login",
      "n1\nn2\n",
      NULL,
      "PBS: this machine is login, which is not among the 2 hosts of PBS_NODEFILE" },
    { "PBS without its file",
      { "x" },
      { "PBS_NODEFILE=/f", "PBS_JOBID=12.srv", "PBS_TASKNUM=2" },
      "n1",
      NULL,
      NULL,
      "PBS_NODEFILE is /f, which cannot be read" },
    { "PBS and another --nnodes",
      { "--nnodes=4", "x" },
      { "PBS_NODEFILE=/f", "PBS_JOBID=12.srv" },
      "n1",
      "n1\nn2\n",
      NULL,
      "--nnodes=4, but PBS has started 2 nodes" },
    /* LSF, under blaunch */
    { "LSF",
      { "x" },
      { "LSB_JOBID=77", "LSF_PM_TASKID=2", "LSB_HOSTS=a a b b",
        "LSB_MCPU_HOSTS=a 2 b 2 " },
      "b",
      NULL,
      "a|2|lsf-77|node_order=1,is_host=false",
      NULL },
    { "LSF, the list alone",
      { "x" },
      { "LSB_JOBID=77", "LSF_PM_TASKID=1", "LSB_HOSTS=a a b b c" },
      "a",
      NULL,
      "a|3|lsf-77|node_order=0,is_host=true",
      NULL },
    { "LSF, contradictory",
      { "x" },
      { "LSB_JOBID=77", "LSF_PM_TASKID=1", "LSB_HOSTS=a b c",
        "LSB_MCPU_HOSTS=a 2 b 2" },
      "a",
      NULL,
      NULL,
      "LSB_HOSTS has 3 hosts (the first is a) and LSB_MCPU_HOSTS has 2" },
    { "LSF, the script itself",
      { "x" },
      { "LSB_JOBID=77", "LSB_HOSTS=a b" },
      "a",
      NULL,
      NULL,
      NULL },
    /* Flux */
    { "Flux",
      { "x" },
      { "FLUX_JOB_ID=f2DQ", "FLUX_JOB_SIZE=2", "FLUX_JOB_NNODES=2",
        "FLUX_TASK_RANK=1" },
      "c2",
      "c1 c2\n",
      "c1|2|flux-f2DQ|node_order=1,is_host=false",
      NULL },
    { "Flux, several tasks on a node",
      { "x" },
      { "FLUX_JOB_ID=f2DQ", "FLUX_JOB_SIZE=8", "FLUX_JOB_NNODES=2",
        "FLUX_TASK_RANK=1" },
      "c2",
      "c1 c2\n",
      NULL,
      "flux started 8 tasks on 2 nodes" },
    { "Flux, which does not say where",
      { "x" },
      { "FLUX_JOB_ID=f2DQ", "FLUX_JOB_SIZE=2", "FLUX_JOB_NNODES=2",
        "FLUX_TASK_RANK=1" },
      "c2",
      NULL,
      NULL,
      "does not print the 2 hosts" },
    { "Flux, one node",
      { "x" },
      { "FLUX_JOB_ID=f2DQ", "FLUX_JOB_SIZE=1", "FLUX_JOB_NNODES=1",
        "FLUX_TASK_RANK=0" },
      "c2",
      NULL,
      NULL,
      NULL },
    /* SkyPilot */
    { "SkyPilot",
      { "x" },
      { "SKYPILOT_NODE_RANK=1", "SKYPILOT_NUM_NODES=2",
        "SKYPILOT_NODE_IPS=10.0.0.4\n10.0.0.5", "SKYPILOT_TASK_ID=sky-2026_t-1" },
      "w",
      NULL,
      "10.0.0.4|2|sky-sky-2026_t-1|node_order=1,is_host=false",
      NULL },
    { "SkyPilot, contradictory",
      { "x" },
      { "SKYPILOT_NODE_RANK=1", "SKYPILOT_NUM_NODES=3",
        "SKYPILOT_NODE_IPS=10.0.0.4\n10.0.0.5" },
      "w",
      NULL,
      NULL,
      "SKYPILOT_NUM_NODES is 3, but SKYPILOT_NODE_IPS has 2 addresses" },
    { "SkyPilot, a rank out of range",
      { "x" },
      { "SKYPILOT_NODE_RANK=2", "SKYPILOT_NODE_IPS=10.0.0.4\n10.0.0.5" },
      "w",
      NULL,
      NULL,
      "SKYPILOT_NODE_RANK is \"2\"" },
    /* AWS Batch, multi-node */
    { "AWS Batch, the main node",
      { "x" },
      { "AWS_BATCH_JOB_NUM_NODES=3", "AWS_BATCH_JOB_NODE_INDEX=0",
        "AWS_BATCH_JOB_MAIN_NODE_INDEX=0", "AWS_BATCH_JOB_ID=ab-1#0" },
      "ip-10-0-0-4",
      NULL,
      "ip-10-0-0-4|3|aws-ab-1|node_order=0,is_host=true",
      NULL },
    { "AWS Batch, another node, and a main node that is not the first",
      { "x" },
      { "AWS_BATCH_JOB_NUM_NODES=3", "AWS_BATCH_JOB_NODE_INDEX=0",
        "AWS_BATCH_JOB_MAIN_NODE_INDEX=1", "AWS_BATCH_JOB_ID=ab-1#0",
        "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS=10.0.0.4" },
      "ip-10-0-0-3",
      NULL,
      "10.0.0.4|3|aws-ab-1|node_order=1,is_host=false",
      NULL },
    { "AWS Batch without the address",
      { "x" },
      { "AWS_BATCH_JOB_NUM_NODES=3", "AWS_BATCH_JOB_NODE_INDEX=2",
        "AWS_BATCH_JOB_MAIN_NODE_INDEX=0" },
      "h",
      NULL,
      NULL,
      "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS is not set" },
    /* Kubernetes */
    { "an Indexed Job",
      { "--nnodes=2", "x" },
      { "JOB_COMPLETION_INDEX=1" },
      "train-1.train.default.svc.cluster.local",
      NULL,
      "train-0.train.default.svc.cluster.local|2|k8s-train|node_order=1,is_host=false",
      NULL },
    { "a JobSet, elastic",
      { "--nnodes=1:4", "x" },
      { "JOB_COMPLETION_INDEX=0" },
      "js-w-0-0.js",
      NULL,
      "js-w-0-0.js|1:4|k8s-js-w-0|node_order=0,is_host=true",
      NULL },
    { "an Indexed Job that does not say how many",
      { "x" },
      { "JOB_COMPLETION_INDEX=1" },
      "train-1.train",
      NULL,
      NULL,
      NULL },
    { "a pod with another index",
      { "--nnodes=2", "x" },
      { "JOB_COMPLETION_INDEX=1" },
      "train-0.train",
      NULL,
      NULL,
      "JOB_COMPLETION_INDEX is 1, but this pod is called train-0.train" },
    { "a pod without a service",
      { "--nnodes=2", "x" },
      { "JOB_COMPLETION_INDEX=1" },
      "train-1",
      NULL,
      NULL,
      "this pod is called train-1, and not NAME-INDEX.SERVICE" },
    { "more pods than nodes",
      { "--nnodes=2", "x" },
      { "JOB_COMPLETION_INDEX=2" },
      "train-2.train",
      NULL,
      NULL,
      "JOB_COMPLETION_INDEX is 2, but --nnodes=2" },
    /* The user has chosen. */
    { "a rendezvous on the command line",
      { "--rdzv-backend=c10d", "--rdzv-endpoint=e:1", "x" },
      { "SKYPILOT_NODE_RANK=9", "SKYPILOT_NODE_IPS=a\nb" },
      "w",
      NULL,
      NULL,
      NULL },
    { "--nnodes=1",
      { "--nnodes=1", "x" },
      { "SKYPILOT_NODE_RANK=9", "SKYPILOT_NODE_IPS=a\nb" },
      "w",
      NULL,
      NULL,
      NULL },
};

static void every_row(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const struct row *r = &rows[i];
        struct options_input in = { .argv = (char *const *)(const void *)r->options };
        const struct scheduler_input around = { (char *const *)(const void *)r->env,
                                                r->hostname, r->hosts };
        static char *const none[] = { NULL };
        struct muster_error err = { 0 };
        struct slurm_texts texts;
        struct options o;
        char got[500] = "";

        while (in.argc < 4 && r->options[in.argc])
            in.argc++;
        in.envp = none;
        assert_int_equal(options_parse(&o, &in, NULL), OPTIONS_FINE);
        if (r->want || r->error)
            assert_int_not_equal(scheduler_asks(&o, around.envp), SCHEDULER_NONE);
        const int rc = scheduler_apply(&o, &around, &texts, &err);

        if ((rc != 0) != (r->error != NULL) || (rc && !strstr(err.text, r->error)))
            fail_msg("%s: %s", r->says, rc ? err.text : "no error");
        if (rc == 0 && strcmp(o.rdzv_conf, "") != 0)
            (void)snprintf(got, sizeof got, "%.*s|%s|%s|%s",
                           (int)strcspn(o.rdzv_endpoint, ":"), o.rdzv_endpoint,
                           o.nnodes, o.rdzv_id, o.rdzv_conf);
        if (strcmp(got, r->want ? r->want : "") != 0)
            fail_msg("%s: got %s", r->says, got);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_row) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
