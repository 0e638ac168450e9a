/* scheduler.c - see scheduler.h. */
#include "launch/core/scheduler.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/err.h"
#include "base/py/text.h"

#define REMEDY                                                                         \
    "Name the rendezvous yourself: --rdzv-backend=c10d --rdzv-endpoint=HOST:PORT "     \
    "--nnodes=N."

/* A list of hosts in a text: words between blanks, in which a host may come several
 * times, and with numbers between them that are skipped (LSB_MCPU_HOSTS). */
struct hosts {
    const char *text;
    bool counted; /* each host is followed by a number */
};

static struct span host_next(const char **at, bool counted)
{
    static const char blanks[] = " \t\r\n,";
    const char *p = *at + strspn(*at, blanks);
    const size_t n = strcspn(p, blanks);

    *at = p + n;
    if (counted) {
        *at += strspn(*at, blanks);
        *at += strcspn(*at, blanks);
    }
    return span_of(p, n);
}

static bool same_host(struct span a, const char *b)
{
    const size_t na = strcspn((const char *)a.p, ". \t\r\n,"), nb = strcspn(b, ".");

    /* One may have its domain and the other not. */
    return MIN_OF(na, a.n) == nb && memcmp(a.p, b, nb) == 0;
}

/* Whether the host is also further ahead in the list. */
static bool seen_before(struct hosts h, struct span host)
{
    const char *at = h.text;

    for (;;) {
        const struct span s = host_next(&at, h.counted);

        if (s.p >= host.p)
            return false;
        if (span_eq(s, host))
            return true;
    }
}

/* How many hosts there are, each counted once; which of them is `own` (-1: none), and
 * the name of the first. */
static int64_t hosts_count(struct hosts h, const char *own, int64_t *rank, char *first,
                           size_t size)
{
    const char *at = h.text;
    int64_t n = 0;

    *rank = -1;
    for (;;) {
        const struct span s = host_next(&at, h.counted);

        if (s.n == 0)
            return n;
        if (seen_before(h, s))
            continue;
        if (n == 0)
            (void)snprintf(first, size, "%.*s", (int)MIN_OF(s.n, size - 1),
                           (const char *)s.p);
        if (*rank < 0 && same_host(s, own))
            *rank = n;
        n++;
    }
}

static bool number(char *const *envp, const char *name, int64_t *out)
{
    const char *text = env_get(envp, name);

    return text && py_int(span_str(text), out) && *out >= 0 && *out < 1 << 24;
}

static int bad(struct muster_error *err, char *const *envp, const char *name,
               const char *where)
{
    const char *text = env_get(envp, name);

    return err_set(err, MUSTER_EINVAL, "%s: %s is %s%.100s%s\n" REMEDY, where, name,
                   text ? "\"" : "not set", text ? text : "", text ? "\"" : "");
}

static void put_id(struct rendezvous_place *p, const char *name, const char *id)
{
    (void)snprintf(p->id, sizeof p->id, "%s-%.*s", name,
                   (int)MIN_OF(strcspn(id ? id : "", "#"), (size_t)40), id ? id : "");
}

/* --- each scheduler: 1 if it has started us, 0 if not, or an error -------------------
 */

static int read_hosts(const struct scheduler_input *in, struct hosts h,
                      const char *scheduler, const char *variable,
                      struct rendezvous_place *p, struct muster_error *err)
{
    p->nodes = hosts_count(h, in->hostname, &p->rank, p->host, sizeof p->host);
    if (p->nodes < 2)
        return 0;
    if (p->rank < 0)
        return err_set(err, MUSTER_EINVAL,
                       "%s: this machine is %s, which is not among the %" PRId64
                       " hosts of %s\n" REMEDY,
                       scheduler, in->hostname, p->nodes, variable);
    return 1;
}

/* A job's script runs on the first host alone, and may mean this host alone: the nodes
 * are one group if something started a task on each, or if --nnodes says so. */
static bool means_all(const struct options *o, char *const *envp, const char *task)
{
    int64_t n;

    return strcmp(o->nnodes, "1:1") != 0 ||
           (number(envp, task, &n) && n > (strcmp(task, "PBS_TASKNUM") == 0));
}

static int read_pbs(const struct options *o, const struct scheduler_input *in,
                    struct rendezvous_place *p, struct muster_error *err)
{
    const char *job = env_get(in->envp, "PBS_JOBID");

    if (!env_get(in->envp, "PBS_NODEFILE") || !means_all(o, in->envp, "PBS_TASKNUM"))
        return 0;
    if (!in->hosts)
        return err_set(err, MUSTER_EINVAL,
                       "PBS: PBS_NODEFILE is %.200s, which cannot be read on this "
                       "host\n" REMEDY,
                       env_get(in->envp, "PBS_NODEFILE"));
    if (!job)
        return bad(err, in->envp, "PBS_JOBID", "PBS");
    put_id(p, "pbs", job);
    return read_hosts(in, (struct hosts){ in->hosts, false }, "PBS", "PBS_NODEFILE", p,
                      err);
}

static int read_lsf(const struct options *o, const struct scheduler_input *in,
                    struct rendezvous_place *p, struct muster_error *err)
{
    const char *list = env_get(in->envp, "LSB_HOSTS");
    const char *counts = env_get(in->envp, "LSB_MCPU_HOSTS");
    const char *job = env_get(in->envp, "LSB_JOBID");
    const struct hosts h = { counts ? counts : list, counts != NULL };
    char first[sizeof p->host];
    int64_t rank, others;

    if (!h.text || !job || !means_all(o, in->envp, "LSF_PM_TASKID"))
        return 0;
    put_id(p, "lsf", job);
    const int rc =
        read_hosts(in, h, "LSF", counts ? "LSB_MCPU_HOSTS" : "LSB_HOSTS", p, err);
    if (rc <= 0 || !counts || !list)
        return rc;
    others = hosts_count((struct hosts){ list, false }, in->hostname, &rank, first,
                         sizeof first);
    if (others == p->nodes && rank == p->rank && strcmp(first, p->host) == 0)
        return 1;
    return err_set(err, MUSTER_EINVAL,
                   "LSF: LSB_HOSTS has %" PRId64 " hosts (the first is %s) and "
                   "LSB_MCPU_HOSTS has %" PRId64 " (%s): they contradict each "
                   "other\n" REMEDY,
                   others, first, p->nodes, p->host);
}

static int read_flux(const struct options *o, const struct scheduler_input *in,
                     struct rendezvous_place *p, struct muster_error *err)
{
    int64_t tasks, rank;

    (void)o;
    if (!env_get(in->envp, "FLUX_JOB_ID") ||
        !number(in->envp, "FLUX_JOB_NNODES", &p->nodes) || p->nodes < 2 ||
        !env_get(in->envp, "FLUX_TASK_RANK"))
        return 0;
    if (!number(in->envp, "FLUX_TASK_RANK", &p->rank) || p->rank >= p->nodes)
        return bad(err, in->envp, "FLUX_TASK_RANK", "Flux");
    if (!number(in->envp, "FLUX_JOB_SIZE", &tasks))
        return bad(err, in->envp, "FLUX_JOB_SIZE", "Flux");
    if (tasks != p->nodes)
        return err_set(err, MUSTER_EINVAL,
                       "flux started %" PRId64 " tasks on %" PRId64 " nodes, but one "
                       "muster per node starts all of its workers\n"
                       "Give flux run --tasks-per-node=1, and muster run "
                       "--nproc-per-node for the workers.",
                       tasks, p->nodes);
    if (!in->hosts || hosts_count((struct hosts){ in->hosts, false }, in->hostname,
                                  &rank, p->host, sizeof p->host) != p->nodes)
        return err_set(err, MUSTER_EINVAL,
                       "Flux: `flux hostlist --expand local` does not print the "
                       "%" PRId64 " hosts of this job\n" REMEDY,
                       p->nodes);
    put_id(p, "flux", env_get(in->envp, "FLUX_JOB_ID"));
    return 1;
}

static int read_skypilot(const struct options *o, const struct scheduler_input *in,
                         struct rendezvous_place *p, struct muster_error *err)
{
    const char *ips = env_get(in->envp, "SKYPILOT_NODE_IPS");
    int64_t count, rank;

    (void)o;
    if (!ips || !env_get(in->envp, "SKYPILOT_NODE_RANK"))
        return 0;
    p->nodes =
        hosts_count((struct hosts){ ips, false }, "", &rank, p->host, sizeof p->host);
    if (number(in->envp, "SKYPILOT_NUM_NODES", &count) && count != p->nodes)
        return err_set(err, MUSTER_EINVAL,
                       "SkyPilot: SKYPILOT_NUM_NODES is %" PRId64
                       ", but SKYPILOT_NODE_IPS has %" PRId64 " addresses\n" REMEDY,
                       count, p->nodes);
    if (p->nodes < 2)
        return 0;
    if (!number(in->envp, "SKYPILOT_NODE_RANK", &p->rank) || p->rank >= p->nodes)
        return bad(err, in->envp, "SKYPILOT_NODE_RANK", "SkyPilot");
    put_id(p, "sky", env_get(in->envp, "SKYPILOT_TASK_ID"));
    return 1;
}

static int read_aws(const struct options *o, const struct scheduler_input *in,
                    struct rendezvous_place *p, struct muster_error *err)
{
    const char *addr =
        env_get(in->envp, "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS");
    int64_t first;

    (void)o;
    if (!env_get(in->envp, "AWS_BATCH_JOB_NUM_NODES"))
        return 0;
    if (!number(in->envp, "AWS_BATCH_JOB_NUM_NODES", &p->nodes))
        return bad(err, in->envp, "AWS_BATCH_JOB_NUM_NODES", "AWS Batch");
    if (p->nodes < 2)
        return 0;
    if (!number(in->envp, "AWS_BATCH_JOB_NODE_INDEX", &p->rank) || p->rank >= p->nodes)
        return bad(err, in->envp, "AWS_BATCH_JOB_NODE_INDEX", "AWS Batch");
    if (!number(in->envp, "AWS_BATCH_JOB_MAIN_NODE_INDEX", &first) || first >= p->nodes)
        return bad(err, in->envp, "AWS_BATCH_JOB_MAIN_NODE_INDEX", "AWS Batch");
    if (p->rank != first && !addr) /* The main node itself is not told. */
        return bad(err, in->envp, "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS",
                   "AWS Batch");
    (void)snprintf(p->host, sizeof p->host, "%.255s",
                   p->rank == first ? in->hostname : addr);
    p->rank = p->rank == first ? 0 : p->rank < first ? p->rank + 1 : p->rank;
    put_id(p, "aws", env_get(in->envp, "AWS_BATCH_JOB_ID"));
    return 1;
}

/* Pods of an Indexed Job, of a JobSet, too, are called NAME-INDEX; with a headless
 * service they have a domain, in which NAME-0 is the first. How many there are nobody
 * says. */
static int read_indexed(const struct options *o, const struct scheduler_input *in,
                        struct rendezvous_place *p, struct muster_error *err)
{
    const char *dot = strchr(in->hostname, '.'), *index = NULL;
    const size_t n = dot ? (size_t)(dot - in->hostname) : strlen(in->hostname);
    const char *colon = strchr(o->nnodes, ':');
    int64_t own, most;

    if (!env_get(in->envp, "JOB_COMPLETION_INDEX") || strcmp(o->nnodes, "1:1") == 0)
        return 0;
    if (!number(in->envp, "JOB_COMPLETION_INDEX", &p->rank))
        return bad(err, in->envp, "JOB_COMPLETION_INDEX", "Kubernetes");
    if (!py_int(span_str(colon ? colon + 1 : o->nnodes), &most) || most < 2)
        return 0;
    if (p->rank >= most)
        return err_set(err, MUSTER_EINVAL,
                       "Kubernetes: JOB_COMPLETION_INDEX is %" PRId64
                       ", but --nnodes=%s\nGive --nnodes as many as the Job has "
                       "completions.",
                       p->rank, o->nnodes);
    for (size_t i = 0; i < n; i++)
        if (in->hostname[i] == '-')
            index = in->hostname + i + 1;
    if (!dot || !index ||
        !py_int(span_of(index, (size_t)(in->hostname + n - index)), &own))
        return err_set(err, MUSTER_EINVAL,
                       "Kubernetes: this pod is called %s, and not NAME-INDEX.SERVICE: "
                       "the others cannot find its first one\nGive the Job a headless "
                       "service (subdomain). " REMEDY,
                       in->hostname);
    if (own != p->rank)
        return err_set(err, MUSTER_EINVAL,
                       "Kubernetes: JOB_COMPLETION_INDEX is %" PRId64
                       ", but this pod is called %s\n" REMEDY,
                       p->rank, in->hostname);
    (void)snprintf(p->host, sizeof p->host, "%.*s0%s", (int)(index - in->hostname),
                   in->hostname, dot);
    (void)snprintf(p->id, sizeof p->id, "k8s-%.*s",
                   (int)MIN_OF((size_t)(index - in->hostname - 1), (size_t)40),
                   in->hostname);
    return 1;
}

enum scheduler_wants scheduler_asks(const struct options *o, char *const *envp)
{
    static const char *const others[] = { "SKYPILOT_NODE_IPS",
                                          "AWS_BATCH_JOB_NUM_NODES", "LSB_JOBID",
                                          "JOB_COMPLETION_INDEX" };

    if (!rendezvous_is_open(o))
        return SCHEDULER_NONE;
    if (env_get(envp, "FLUX_JOB_ID"))
        return SCHEDULER_FLUX_HOSTS;
    if (env_get(envp, "PBS_NODEFILE"))
        return SCHEDULER_PBS_FILE;
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        if (env_get(envp, others[i]))
            return SCHEDULER_ENV;
    return SCHEDULER_NONE;
}

int scheduler_apply(struct options *o, const struct scheduler_input *in,
                    struct slurm_texts *texts, struct muster_error *err)
{
    static const struct {
        const char *name;
        int (*read)(const struct options *o, const struct scheduler_input *in,
                    struct rendezvous_place *p, struct muster_error *err);
    } schedulers[] = {
        { "Flux", read_flux },     { "SkyPilot", read_skypilot },
        { "AWS Batch", read_aws }, { "PBS", read_pbs },
        { "LSF", read_lsf },       { "Kubernetes", read_indexed },
    };

    if (!rendezvous_is_open(o))
        return 0;
    for (size_t i = 0; i < ARRAY_LEN(schedulers); i++) {
        struct rendezvous_place p = { .scheduler = schedulers[i].name };
        const int rc = schedulers[i].read(o, in, &p, err);

        if (rc)
            return rc < 0 ? rc : rendezvous_fill(o, &p, texts, err);
    }
    return 0;
}
