/* job_parts.c - stands in for what a simulated agent does not need: files for the
 * workers' output, the console, control groups. Its messages go to the transcript. */
#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"
#include "logs/log_writer.h"
#include "logs/worker_logs.h"
#include "loop/defer.h"
#include "process/cgroup.h"
#include "sim/job.h"
#include "stacks/reader.h"

struct logs {
    struct defer drained;
    void (*cb)(void *ctx);
    void *ctx;
};

static void logs_on_drained(void *ctx)
{
    struct logs *l = ctx;

    l->cb(l->ctx);
}

int logs_open(const struct logs_opts *opts, struct logs **out, struct muster_error *err)
{
    struct logs *l = mem_calloc(1, sizeof *l);

    if (!l)
        return err_nomem(err);
    defer_init(&l->drained, opts->loop, logs_on_drained, l);
    *out = l;
    return 0;
}

int logs_attempt(struct logs *l, int64_t attempt, struct muster_error *err)
{
    return 0;
}

int logs_worker(struct logs *l, int64_t local_rank, int64_t rank,
                struct logs_worker *out, struct muster_error *err)
{
    out->out = out->err = -1;
    out->error_file = mem_strdup("");
    return out->error_file ? 0 : err_nomem(err);
}

void logs_worker_left(struct logs *l, int64_t local_rank)
{
}

void logs_drain(struct logs *l, void (*cb)(void *ctx), void *ctx)
{
    l->cb = cb;
    l->ctx = ctx;
    defer_call(&l->drained);
}

void logs_tail(struct logs *l, int64_t local_rank, struct buf *out, bool *whole,
               char **path, int64_t *traceback_us)
{
    const char *words = job_current()->words[local_rank];

    if (words)
        (void)buf_append_str(out, words);
    *whole = true;
    *path = NULL;
    *traceback_us = 0;
}

bool logs_full(const struct logs *l)
{
    return false;
}

const char *logs_base(const struct logs *l)
{
    return "";
}

const char *logs_temp(const struct logs *l)
{
    return NULL;
}

const char *logs_run(const struct logs *l)
{
    return NULL;
}

static void logs_on_closed(uv_handle_t *handle)
{
    mem_free(CONTAINER_OF(handle, struct logs, drained.idle));
}

void logs_close(struct logs *l, bool tidy)
{
    if (l)
        uv_close((uv_handle_t *)&l->drained.idle, logs_on_closed);
}

void job_log(void *ctx, enum log_level level, enum log_place place, const char *text)
{
    static const char letters[] = "DIWEC";

    if (level > LOG_DEBUG)
        job_moment();
    if (os.loud)
        os_log(os.current ? os.current->name : "", "%c %.*s", letters[level],
               (int)MIN_OF(strcspn(text, "\n"), 1499), text);
}

void status_line(const struct log_writer *n, const char *text)
{
}

/* Simulated workers have no memory that could be read. */
int stacks_read(const struct stacks_read_opts *opts, struct stacks_reading **out,
                struct muster_error *err)
{
    return err_set(err, MUSTER_ENOTSUP, "simulated workers have no stacks");
}

void stacks_read_cancel(struct stacks_reading *r)
{
}

bool cgroup_name(const char *root, char *to, size_t size)
{
    return false;
}

int64_t cgroup_oom_kills(const char *root)
{
    return 0;
}

int64_t cgroup_memory(const char *root, enum cgroup_figure what)
{
    return -1;
}

int64_t cgroup_cpus(const char *root)
{
    return 0;
}
