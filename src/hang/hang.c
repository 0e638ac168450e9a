/* hang.c - see hang.h. */
#include "hang/hang.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "loop/clock.h"
#include "stacks/core/procfs.h"

#define KIND          "hang"
#define LOOK_MS       500u  /* between two looks at clocks and output */
#define STACKS_MS     1500u /* for a sample of stacks */
#define FULL_MS       1500u /* for the stacks that are reported, */
#define FULL_LEAST_MS 1000u /* or less if finding the hang took long */
#define NOTIFY_MS     1300u /* so long after TIME everything must have been reported */
#define TRAVEL_MS     500u
#define RESUME_MS     300u /* for a rank that was held to run on */

/* What is known of one file that a worker writes to. */
struct written {
    uint64_t device, inode;
    int64_t size;
    struct timespec at;
};

struct hang {
    struct hang_opts opts;
    struct hang_node node;
    struct hang_judge judge;
    struct channel *channel;
    struct stacks_target *targets; /* owned, as is the next: two a worker, and one */
    struct written *files;
    uint64_t store_writes;
    uint64_t holds, holding, held_times, held_until_ms; /* see look_at_readings */
    uv_timer_t timer;
    bool on;             /* workers run */
    bool asking;         /* a question or a reading is under way */
    unsigned generation; /* of attempts: late answers are dropped, */
    unsigned asked;      /* those to what was asked in this one are not */
    unsigned pending;    /* callbacks to come, those of the channel left out */
    bool closed;
    uint64_t silent_ms, found_ms;
};

/* --- looks ------------------------------------------------------------------------ */

static struct span slurp(const char *path, char *room, size_t size)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? -1 : read(fd, room, size);

    if (fd >= 0)
        close(fd);
    return span_of(room, n > 0 ? (size_t)n : 0);
}

/* "ran_ns waited_ns slices": one short file instead of two long ones. */
static bool read_schedstat(pid_t pid, uint64_t *ran_us, uint64_t *slices)
{
    char path[64], room[128];
    unsigned long long ran, waited, count;

    snprintf(path, sizeof path, "/proc/%d/task/%d/schedstat", (int)pid, (int)pid);
    const struct span text = slurp(path, room, sizeof room - 1);
    room[text.n] = '\0';
    if (sscanf(room, "%llu %llu %llu", &ran, &waited, &count) != 3)
        return false;
    *ran_us = ran / 1000;
    *slices = count;
    return true;
}

static uint64_t read_waits(pid_t pid)
{
    struct stack_process p = { 0 };
    char path[64], room[4096];

    snprintf(path, sizeof path, "/proc/%d/task/%d/status", (int)pid, (int)pid);
    (void)procfs_switches(&p, slurp(path, room, sizeof room));
    return p.switches;
}

static uint64_t read_cpu(pid_t pid)
{
    struct stack_process p = { 0 };
    char path[64], room[1024];

    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", (int)pid, (int)pid);
    (void)procfs_cpu(&p, slurp(path, room, sizeof room), sysconf(_SC_CLK_TCK));
    return p.cpu_ms * 1000;
}

/* Pipes do not tell that somebody wrote to them, but who wrote does. 0: unknown. */
static uint64_t read_bytes(pid_t pid)
{
    char path[64], room[512];
    unsigned long long bytes = 0;

    snprintf(path, sizeof path, "/proc/%d/task/%d/io", (int)pid, (int)pid);
    const struct span text = slurp(path, room, sizeof room - 1);
    room[text.n] = '\0';
    const char *line = strstr(room, "wchar:");
    return line && sscanf(line, "wchar: %llu", &bytes) == 1 ? bytes : 0;
}

/* A thread that has not run since the last look has neither gone to sleep nor written.
 */
static void look_at_rank(struct hang *h, const struct stacks_target *t, uint64_t now,
                         bool held)
{
    const struct hang_rank *r = &h->node.ranks[t->local_rank];
    struct hang_seen seen = { .pid = t->pid };
    uint64_t slices;

    if (!read_schedstat(t->pid, &seen.cpu_us, &slices)) {
        seen.cpu_us = read_cpu(t->pid);
        seen.waits = read_waits(t->pid);
        seen.bytes = read_bytes(t->pid);
    } else if (r->last.pid == t->pid && r->last.cpu_us == seen.cpu_us) {
        seen.waits = r->last.waits;
        seen.bytes = r->last.bytes;
    } else {
        seen.waits = read_waits(t->pid);
        seen.bytes = read_bytes(t->pid);
    }
    if (held)
        hang_node_held(&h->node, (size_t)t->local_rank, &seen, h->held_times, now);
    else
        hang_node_saw(&h->node, (size_t)t->local_rank, &seen, now);
}

/* Of any thread and process: files tell when they were written to. */
static void look_at_file(struct hang *h, struct written *w, const char *path,
                         uint64_t now)
{
    struct timespec clock;
    struct stat st;

    if (stat(path, &st) != 0 || S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode))
        return;
    const struct written seen = { (uint64_t)st.st_dev, (uint64_t)st.st_ino,
                                  (int64_t)st.st_size, st.st_mtim };
    const bool known = w->inode != 0;
    const bool same = w->device == seen.device && w->inode == seen.inode &&
                      w->size == seen.size && w->at.tv_sec == seen.at.tv_sec &&
                      w->at.tv_nsec == seen.at.tv_nsec;
    *w = seen;
    if (same || !known)
        return;
    clock_gettime(CLOCK_REALTIME, &clock);
    const int64_t age = (int64_t)(clock.tv_sec - seen.at.tv_sec) * 1000 +
                        (clock.tv_nsec - seen.at.tv_nsec) / 1000000;
    hang_node_wrote(&h->node, now, age < 0 || age > LOOK_MS ? 0 : (uint64_t)age);
}

/* Whether workers are held by readings, or have to answer, and how often they were
 * since that began. A reading that turned out to be such only at its end was counted
 * once. */
static bool look_at_readings(struct hang *h, uint64_t now)
{
    uint64_t holds;
    const uint64_t holding = stacks_service_holds(h->opts.stacks, &holds);
    const uint64_t touched = (holds - h->holds + holding + h->holding + 1) / 2;

    if (now < h->held_until_ms)
        h->held_times += touched - h->holding;
    else
        h->held_times = touched;
    if (holding > 0 || holds != h->holds)
        h->held_until_ms = now + RESUME_MS;
    h->holds = holds;
    h->holding = holding;
    return now < h->held_until_ms;
}

static void look(struct hang *h)
{
    const uint64_t now = clock_mono_ms();
    const size_t count = h->opts.targets(h->opts.ctx, h->targets, h->opts.most);
    const bool held = look_at_readings(h, now);
    char path[64];

    for (size_t i = 0; i < h->opts.most; i++) {
        const struct hang_seen none = { 0 };
        const struct stacks_target *t = NULL;

        for (size_t k = 0; k < count && !t; k++)
            if (h->targets[k].local_rank == (int64_t)i)
                t = &h->targets[k];
        if (!t) {
            hang_node_saw(&h->node, i, &none, now);
            continue;
        }
        look_at_rank(h, t, now, held);
        for (int fd = 1; fd <= 2; fd++) {
            snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)t->pid, fd);
            look_at_file(h, &h->files[2 * i + (size_t)fd - 1], path, now);
        }
    }
    if (h->opts.progress_file)
        look_at_file(h, &h->files[2 * h->opts.most], h->opts.progress_file, now);
    const uint64_t writes =
        h->opts.store_writes ? h->opts.store_writes(h->opts.ctx) : 0;
    if (writes != h->store_writes)
        hang_node_wrote(&h->node, now, 0);
    h->store_writes = writes;
}

/* What the agent itself has just written does not count as progress, though it may be
 * in the file that the workers write to. */
static void forget_own_words(struct hang *h)
{
    const uint64_t quiet_ms = h->node.quiet_ms;

    if (h->on)
        look(h);
    h->node.quiet_ms = quiet_ms;
}

/* --- memory ----------------------------------------------------------------------- */

/* Callbacks may come after the end: the last of them frees. */
static void release(struct hang *h)
{
    if (h->pending > 0 || !h->closed)
        return;
    hang_node_fini(&h->node);
    mem_free(h->targets);
    mem_free(h->files);
    mem_free(h);
}

/* --- this node's answer ----------------------------------------------------------- */

struct answer {
    struct hang *h;
    struct channel_question *q; /* NULL: for ourselves */
    uint64_t time_ms;
    unsigned generation;
};

static void hear(struct hang *h, const struct hang_pulse *all, bool complete);

static void answer(struct answer *a)
{
    struct hang *h = a->h;
    struct hang_pulse p = { 0 };
    struct buf b;

    if (h->on && a->generation == h->generation)
        hang_node_pulse(&h->node, clock_mono_ms(), a->time_ms, &p);
    if (a->q) {
        buf_init(&b, SIZE_MAX);
        (void)hang_pulse_print(&b, &p);
        channel_answer(a->q, buf_span(&b));
        buf_fini(&b);
    } else {
        hear(h, &p, true);
    }
    mem_free(a);
}

static void hang_on_stacks(void *ctx, struct stack_sample *sample)
{
    struct answer *a = ctx;
    struct hang *h = a->h;

    if (h->on && a->generation == h->generation)
        hang_node_stacks(&h->node, sample);
    h->pending--;
    answer(a);
    release(h);
}

static void take_question(struct hang *h, const struct hang_question *q,
                          struct channel_question *from)
{
    struct answer *a = mem_calloc(1, sizeof *a);

    if (!a) {
        if (from)
            channel_answer(from, span_of(NULL, 0));
        else
            hear(h, &(struct hang_pulse){ 0 }, false);
        return;
    }
    *a = (struct answer){ h, from, q->time_ms, h->generation };
    if (h->on)
        look(h);
    if (q->begin)
        hang_node_begin(&h->node);
    const bool stacks =
        q->stacks &&
        (!q->enough || hang_node_spins(&h->node, clock_mono_ms(), q->time_ms));
    if (h->on && stacks &&
        stacks_of_node(h->opts.stacks, STACKS_QUICK, STACKS_MS, hang_on_stacks, a,
                       NULL) == 0)
        h->pending++;
    else
        answer(a);
}

static void hang_on_question(void *ctx, struct channel_question *q, struct span payload)
{
    struct hang_question question;

    if (hang_question_parse(&question, payload) == 0)
        take_question(ctx, &question, q);
    else
        channel_answer(q, span_of(NULL, 0));
}

/* --- the node that decides -------------------------------------------------------- */

static void hang_on_full(void *ctx, struct stack_sample *sample)
{
    struct hang *h = ctx;
    struct stack_findings f;

    h->pending--;
    h->asking = false;
    if (h->on && !h->closed && h->asked == h->generation &&
        stack_findings_make(&f, sample) == 0) {
        const struct hang_report report = {
            sample, &f, h->silent_ms + (clock_mono_ms() - h->found_ms)
        };

        h->opts.on_hang(h->opts.ctx, &report);
        stack_findings_fini(&f);
        forget_own_words(h);
    }
    release(h);
}

/* How much time is left, allowing for a machine that is slow at the moment. */
static uint64_t time_for_stacks(const struct hang *h)
{
    const uint64_t by_ms = h->opts.time_ms + NOTIFY_MS;
    const uint64_t left_ms = by_ms > h->silent_ms ? by_ms - h->silent_ms : 0;

    return MIN_OF(FULL_MS, MAX_OF(FULL_LEAST_MS, left_ms));
}

static void hear(struct hang *h, const struct hang_pulse *all, bool complete)
{
    h->asking = false;
    if (!h->on || h->asked != h->generation)
        return;
    switch (hang_judge_hear(&h->judge, clock_mono_ms(), all, complete)) {
    case HANG_FOUND:
        h->silent_ms = MIN_OF(all->quiet_ms, all->calm_ms);
        h->found_ms = clock_mono_ms();
        if (stacks_of_job(h->opts.stacks, time_for_stacks(h), hang_on_full, h, NULL) ==
            0) {
            h->asking = true;
            h->pending++;
        } else {
            hang_judge_not_reported(&h->judge, clock_mono_ms());
        }
        break;
    case HANG_OVER:
        h->opts.on_over(h->opts.ctx);
        break;
    case HANG_NOTHING:
        break;
    }
}

static void hang_on_answers(void *ctx, const struct channel_answer *answers,
                            size_t count, bool complete)
{
    struct hang *h = ctx;
    struct hang_pulse all = { 0 };

    for (size_t i = 0; i < count; i++) {
        struct hang_pulse p;

        if (!answers[i].missing && answers[i].bytes.n > 0 &&
            hang_pulse_parse(&p, answers[i].bytes) == 0)
            hang_pulse_add(&all, &p);
        else
            complete = false;
    }
    hear(h, &all, complete);
}

static void ask(struct hang *h)
{
    const struct hang_question q = hang_judge_ask(&h->judge);
    struct buf b;

    h->asking = true;
    h->asked = h->generation;
    if (!h->channel || !channel_shared(h->channel)) {
        take_question(h, &q, NULL);
        return;
    }
    buf_init(&b, SIZE_MAX);
    if (hang_question_print(&b, &q) == 0 &&
        channel_ask(h->channel, KIND, buf_span(&b), STACKS_MS + TRAVEL_MS,
                    hang_on_answers, h, NULL) != 0)
        h->asking = false;
    buf_fini(&b);
}

static void hang_on_timer(uv_timer_t *timer)
{
    struct hang *h = timer->data;
    const uint64_t now = clock_mono_ms();

    look(h);
    if (!h->asking && now >= h->judge.due_ms && h->opts.decides(h->opts.ctx))
        ask(h);
    /* Often enough to ask in time if a rank may hang. */
    if (h->judge.stage == HANG_LOOK && h->judge.due_ms > now)
        uv_timer_set_repeat(timer, MIN_OF(LOOK_MS, MAX_OF(h->judge.due_ms - now, 20u)));
    else
        uv_timer_set_repeat(timer, MIN_OF(LOOK_MS, MAX_OF(h->opts.time_ms / 16, 20u)));
}

/* --- open and close --------------------------------------------------------------- */

int hang_open(const struct hang_opts *opts, struct hang **out, struct muster_error *err)
{
    struct hang *h = mem_calloc(1, sizeof *h);

    if (!h)
        return err_nomem(err);
    h->opts = *opts;
    h->targets = mem_calloc(opts->most, sizeof *h->targets);
    h->files = mem_calloc(2 * opts->most + 1, sizeof *h->files);
    if (!h->targets || !h->files ||
        hang_node_init(&h->node, opts->most, clock_mono_ms()) != 0) {
        h->closed = true;
        release(h);
        return err_nomem(err);
    }
    (void)uv_timer_init(opts->loop, &h->timer);
    h->timer.data = h;
    *out = h;
    return 0;
}

int hang_channel(struct hang *h, struct channel *channel)
{
    h->channel = channel;
    return channel_on_question(channel, KIND, hang_on_question, h);
}

void hang_begin(struct hang *h)
{
    const uint64_t now = clock_mono_ms(), ms = MIN_OF(LOOK_MS, h->opts.time_ms / 16);

    h->on = true;
    h->generation++;
    hang_node_reset(&h->node, now);
    hang_judge_init(&h->judge, h->opts.time_ms, now);
    memset(h->files, 0, (2 * h->opts.most + 1) * sizeof *h->files);
    uv_timer_start(&h->timer, hang_on_timer, MAX_OF(ms, 20u), MAX_OF(ms, 20u));
}

void hang_end(struct hang *h)
{
    if (!h)
        return;
    h->on = false;
    h->generation++;
    uv_timer_stop(&h->timer);
}

static void hang_on_closed(uv_handle_t *handle)
{
    struct hang *h = handle->data;

    h->pending--;
    release(h);
}

void hang_close(struct hang *h)
{
    if (!h)
        return;
    hang_end(h);
    h->closed = true;
    h->pending++;
    uv_close((uv_handle_t *)&h->timer, hang_on_closed);
}
