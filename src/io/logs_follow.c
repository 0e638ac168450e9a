/* logs_follow.c - see logs_int.h: teed streams, and what there is to say of them. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "group/worker.h"
#include "io/logs_int.h"
#include "io/where.h"

static void on_trouble(void *ctx, const char *name, int errnum)
{
    const struct logs *l = ctx;

    note(l->notes, NOTE_ERROR, AT_TAIL, "error in log tailer for %s. %s", name,
         errnum == EPIPE ? "BrokenPipeError" : strerror(errnum));
}

static void on_blind(void *ctx, unsigned every_ms, int errnum)
{
    const struct logs *l = ctx;

    note(l->notes, NOTE_WARN, "muster/logs",
         "inotify cannot be used (%s): log files are looked at every %u ms instead. "
         "All processes of a user share its limits, fs.inotify.max_user_instances and "
         "fs.inotify.max_user_watches: see sysctl.",
         strerror(errnum), every_ms);
}

int logs_follow(struct logs *l, const char *path, int which, int64_t local_rank,
                int64_t rank, struct muster_error *err)
{
    const struct launch_config *c = l->config;
    const struct text_list *needles = which ? &c->stderr_needles : &c->stdout_needles;
    const struct tails_opts opts = { l->loop, on_trouble, on_blind, l };
    char name[300];
    struct buf prefix;
    int rc = 0;

    if (!l->tails)
        rc = tails_open(&opts, &l->tails, err);
    buf_init(&prefix, SIZE_MAX);
    if (rc == 0 && worker_prefix(&prefix, c, rank, local_rank) != 0)
        rc = err_nomem(err);
    snprintf(name, sizeof name, "%s%" PRId64, c->role, local_rank);
    if (rc == 0)
        rc = tails_add(l->tails,
                       &(struct tail_spec){ .path = path,
                                            .name = name,
                                            .prefix = buf_span(&prefix),
                                            .is_stderr = which == 1,
                                            .needles = needles->items,
                                            .needle_count = needles->count,
                                            .copy_fd = l->filtered[which] },
                       err);
    buf_fini(&prefix);
    return rc;
}
