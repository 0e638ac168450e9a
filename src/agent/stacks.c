/* stacks.c - the stacks of this node's workers, for whoever may ask: see
 * stacks/service.h. */
#include "agent/agent_int.h"
#include "stacks/service.h"

static size_t find_targets(void *ctx, struct stacks_target *out, size_t most)
{
    const struct agent *a = ctx;
    size_t n = 0;

    for (int64_t i = 0; i < a->config->nproc && n < most; i++)
        if (a->workers[i].pid > 0 && !a->workers[i].exited)
            out[n++] =
                (struct stacks_target){ a->range.base_rank + i, i, a->workers[i].pid };
    return n;
}

/* As with the status, a job goes on without it. */
void agent_stacks_open(struct agent *a)
{
    const struct stacks_service_opts opts = {
        .loop = &a->loop,
        .run_id = a->config->rdzv.run_id,
        .node = a->host,
        .envp = a->opts.envp,
        .targets = find_targets,
        .most = (size_t)a->config->nproc,
        .ctx = a,
    };
    struct muster_error why = { 0 };
    int rc = stacks_service_open(&opts, &a->stacks, &why);

    if (rc == 0 && a->local)
        rc = stacks_service_local(a->stacks, a->local);
    if (rc != 0)
        note(a->opts.notes, NOTE_DEBUG, "muster/agent", "no stacks: %s", why.text);
}

void agent_stacks_close(struct agent *a)
{
    stacks_service_close(a->stacks);
    a->stacks = NULL;
}
