/* hang.c - see hang.h. */
#include "hang/hang.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "loop/clock.h"
#include "stacks/core/procfs.h"

#define KIND      "hang"
#define LOOK_MS   500u  /* between two looks at clocks and output */
#define STACKS_MS 1500u /* for stacks, at least */
#define TRAVEL_MS 500u
#define OUTPUT_MS 5000u /* until a worker's output is looked up anew */

/* The files of a worker that are looked at again and again. Opening one of them costs
 * more than reading it, so they stay open. */
enum { SCHEDSTAT, STATUS, STAT, IO, OUTPUT, ERRORS, FILES };

static const char *const names[FILES] = {
    [SCHEDSTAT] = "schedstat", [STATUS] = "status", [STAT] = "stat", [IO] = "io",
    [OUTPUT] = "fd/1",         [ERRORS] = "fd/2",
};

struct worker_files {
    pid_t pid;
    int fds[FILES];     /* -1: not open */
    uint64_t output_ms; /* when OUTPUT and ERRORS were looked up */
};

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
    struct session *session;
    struct stacks_target *targets; /* owned, as are the next two */
    struct worker_files *workers;
    struct written *files; /* two for each worker, and the progress file */
    bool keep_open;        /* false: too many workers for that */
    uint64_t store_writes;
    struct hang_holds holds;
    uv_timer_t timer;
    bool on;             /* workers run */
    bool asking;         /* a question or a reading is under way */
    unsigned generation; /* counts beginnings and ends of attempts */
    unsigned asked;      /* the generation of the last question: an answer that comes
                            in a later one is dropped */
    unsigned pending;    /* callbacks to come, not counting the session's */
    bool closed;
    struct stack_sample sample; /* owned: to be reported if the job does hang */
};

/* --- looks ------------------------------------------------------------------------ */

static void close_file(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void close_files(struct worker_files *w, int from)
{
    for (int i = from; i < FILES; i++)
        close_file(&w->fds[i]);
}

/* O_PATH suffices to ask when a worker's output was written to. It opens neither the
 * other end of a pipe nor a device. */
static int worker_file(struct worker_files *w, int which)
{
    char path[64];

    if (w->fds[which] >= 0)
        return w->fds[which];
    snprintf(path, sizeof path, "/proc/%d/task/%d/%s", (int)w->pid, (int)w->pid,
             names[which]);
    w->fds[which] =
        open(path, (which < OUTPUT ? O_RDONLY | O_NOCTTY : O_PATH) | O_CLOEXEC);
    return w->fds[which];
}

static struct span read_worker_file(struct worker_files *w, int which, char *room,
                                    size_t size)
{
    const int fd = worker_file(w, which);
    const ssize_t n = fd < 0 ? -1 : pread(fd, room, size - 1, 0);
    const size_t length = n > 0 ? (size_t)n : 0;

    room[length] = '\0';
    return span_of(room, length);
}

/* "ran_ns waited_ns slices": one short file instead of two long ones. */
static bool read_schedstat(struct worker_files *w, uint64_t *ran_us)
{
    char room[128];
    unsigned long long ran, waited, count;

    (void)read_worker_file(w, SCHEDSTAT, room, sizeof room);
    if (sscanf(room, "%llu %llu %llu", &ran, &waited, &count) != 3)
        return false;
    *ran_us = ran / 1000;
    return true;
}

static uint64_t read_waits(struct worker_files *w)
{
    struct stack_process p = { 0 };
    char room[4096];

    (void)procfs_switches(&p, read_worker_file(w, STATUS, room, sizeof room));
    return p.switches;
}

static uint64_t read_cpu(struct worker_files *w)
{
    struct stack_process p = { 0 };
    char room[1024];

    (void)procfs_cpu(&p, read_worker_file(w, STAT, room, sizeof room),
                     sysconf(_SC_CLK_TCK));
    return p.cpu_ms * 1000;
}

/* A pipe does not say that it was written to, but the thread that wrote does. 0: not
 * known. */
static uint64_t read_bytes(struct worker_files *w)
{
    char room[512];
    unsigned long long bytes = 0;

    (void)read_worker_file(w, IO, room, sizeof room);
    const char *line = strstr(room, "wchar:");
    return line && sscanf(line, "wchar: %llu", &bytes) == 1 ? bytes : 0;
}

/* A thread that has not run since the last look has neither gone to sleep nor written,
 * so two of its files need not be read. */
static void look_at_rank(struct hang *h, const struct stacks_target *t, uint64_t now,
                         bool held)
{
    const struct hang_rank *r = &h->node.ranks[t->local_rank];
    struct worker_files *w = &h->workers[t->local_rank];
    struct hang_seen seen = { .pid = t->pid };
    const bool exact = read_schedstat(w, &seen.cpu_us);

    if (exact && r->last.pid == t->pid && r->last.cpu_us == seen.cpu_us) {
        seen.waits = r->last.waits;
        seen.bytes = r->last.bytes;
    } else {
        if (!exact)
            seen.cpu_us = read_cpu(w);
        seen.waits = read_waits(w);
        seen.bytes = read_bytes(w);
    }
    if (held)
        hang_node_held(&h->node, (size_t)t->local_rank, &seen, h->holds.times, now);
    else
        hang_node_saw(&h->node, (size_t)t->local_rank, &seen, now);
}

/* A file says when it was written to, by whichever thread or process. */
static void look_at_file(struct hang *h, struct written *w, const struct stat *st,
                         uint64_t now)
{
    struct timespec clock;
    const struct written seen = { (uint64_t)st->st_dev, (uint64_t)st->st_ino,
                                  (int64_t)st->st_size, st->st_mtim };
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

/* Whether this output need not be looked at: a pipe says nothing, and what an earlier
 * rank writes to is looked at there. */
static bool is_output_useless(const struct hang *h, size_t file, const struct stat *st)
{
    if (S_ISFIFO(st->st_mode) || S_ISSOCK(st->st_mode))
        return true;
    for (size_t i = 0; i < file; i++)
        if (h->workers[i / 2].fds[OUTPUT + i % 2] >= 0 &&
            h->files[i].device == (uint64_t)st->st_dev &&
            h->files[i].inode == (uint64_t)st->st_ino)
            return true;
    return false;
}

/* A worker may turn its output elsewhere at any time, so it is looked up anew once in a
 * while, and often enough for a short TIME. */
static void look_at_output(struct hang *h, size_t local_rank, uint64_t now)
{
    struct worker_files *w = &h->workers[local_rank];
    const bool anew =
        now - w->output_ms >= MIN_OF(OUTPUT_MS, h->opts.time_ms / 16) || !h->keep_open;
    struct stat st;

    if (anew) {
        close_files(w, OUTPUT);
        w->output_ms = now;
    }
    for (int i = OUTPUT; i <= ERRORS; i++) {
        const size_t file = 2 * local_rank + (size_t)(i - OUTPUT);

        if (anew)
            (void)worker_file(w, i);
        if (w->fds[i] < 0 || fstat(w->fds[i], &st) != 0)
            continue;
        if (anew && is_output_useless(h, file, &st))
            close_file(&w->fds[i]);
        else
            look_at_file(h, &h->files[file], &st, now);
    }
}

static void look_at_workers(struct hang *h)
{
    const uint64_t now = clock_mono_ms();
    const size_t count = h->opts.targets(h->opts.ctx, h->targets, h->opts.most);
    uint64_t changes;
    const uint64_t running = stacks_service_holds(h->opts.stacks, &changes);
    const bool held = hang_holds_saw(&h->holds, changes, running, now);
    struct stat st;

    for (size_t i = 0; i < h->opts.most; i++) {
        const struct hang_seen none = { 0 };
        struct worker_files *w = &h->workers[i];
        const struct stacks_target *t = NULL;

        for (size_t k = 0; k < count && !t; k++)
            if (h->targets[k].local_rank == (int64_t)i)
                t = &h->targets[k];
        if (!t || t->pid != w->pid) {
            close_files(w, 0);
            w->output_ms = 0;
        }
        if (!t) {
            hang_node_saw(&h->node, i, &none, now);
            continue;
        }
        w->pid = t->pid;
        look_at_rank(h, t, now, held);
        look_at_output(h, i, now);
        if (!h->keep_open)
            close_files(w, 0);
    }
    if (h->opts.progress_file && stat(h->opts.progress_file, &st) == 0)
        look_at_file(h, &h->files[2 * h->opts.most], &st, now);
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
        look_at_workers(h);
    h->node.quiet_ms = quiet_ms;
}

/* --- memory ----------------------------------------------------------------------- */

/* Callbacks may come after hang_close: the last of them frees the memory. */
static void hang_release(struct hang *h)
{
    if (h->pending > 0 || !h->closed)
        return;
    hang_node_fini(&h->node);
    stack_sample_fini(&h->sample);
    mem_free(h->targets);
    mem_free(h->workers);
    mem_free(h->files);
    mem_free(h);
}

/* --- this node's answer ----------------------------------------------------------- */

struct answer {
    struct hang *h;
    struct session_question *q; /* NULL: for ourselves */
    uint64_t time_ms;
    unsigned generation;
};

static void hear_answers(struct hang *h, const struct hang_pulse *all, bool complete);

static void answer_question(struct answer *a)
{
    struct hang *h = a->h;
    struct hang_pulse p = { 0 };
    struct buf b;

    if (h->on && a->generation == h->generation)
        hang_node_pulse(&h->node, clock_mono_ms(), a->time_ms, &p);
    if (a->q) {
        buf_init(&b, SIZE_MAX);
        (void)hang_pulse_print(&b, &p);
        session_answer(a->q, buf_span(&b));
        buf_fini(&b);
    } else {
        hear_answers(h, &p, true);
    }
    mem_free(a);
}

/* Reading ends as soon as all is read. Where it takes long, since the machine is
 * crowded, a hang of minutes can wait for a few seconds more, one of seconds cannot. */
static uint64_t time_for_stacks(uint64_t time_ms)
{
    return MIN_OF(MAX_OF(time_ms / 4, STACKS_MS), STACKS_WAIT_MS);
}

static void hang_on_stacks(void *ctx, struct stack_sample *sample)
{
    struct answer *a = ctx;
    struct hang *h = a->h;

    if (h->on && a->generation == h->generation)
        hang_node_stacks(&h->node, sample);
    h->pending--;
    answer_question(a);
    hang_release(h);
}

static void take_question(struct hang *h, const struct hang_question *q,
                          struct session_question *from)
{
    struct answer *a = mem_calloc(1, sizeof *a);

    if (!a) {
        if (from)
            session_answer(from, span_of(NULL, 0));
        else
            hear_answers(h, &(struct hang_pulse){ 0 }, false);
        return;
    }
    *a = (struct answer){ h, from, q->time_ms, h->generation };
    if (h->on)
        look_at_workers(h);
    if (q->begin)
        hang_node_begin(&h->node);
    const bool stacks =
        q->stacks &&
        (!q->enough || hang_node_spins(&h->node, clock_mono_ms(), q->time_ms));
    if (h->on && stacks &&
        stacks_of_node(h->opts.stacks, STACKS_QUICK, time_for_stacks(q->time_ms),
                       hang_on_stacks, a, NULL) == 0)
        h->pending++;
    else
        answer_question(a);
}

static void hang_on_question(void *ctx, struct session_question *q, struct span payload)
{
    struct hang_question question;

    if (hang_question_parse(&question, payload) == 0)
        take_question(ctx, &question, q);
    else
        session_answer(q, span_of(NULL, 0));
}

/* --- the node that decides -------------------------------------------------------- */

static void ask_if_due(struct hang *h);

/* They are reported if nothing has moved by the time that the job has to have stood
 * still for. */
static void hang_on_full(void *ctx, struct stack_sample *sample)
{
    struct hang *h = ctx;

    h->pending--;
    h->asking = false;
    if (h->on && !h->closed && h->asked == h->generation) {
        stack_sample_fini(&h->sample);
        h->sample = *sample;
        *sample = (struct stack_sample){ 0 };
        ask_if_due(h);
    }
    hang_release(h);
}

static void read_suspects(struct hang *h)
{
    if (stacks_of_job(h->opts.stacks, time_for_stacks(h->opts.time_ms), hang_on_full, h,
                      NULL) == 0) {
        h->asking = true;
        h->pending++;
    } else {
        hang_judge_not_reported(&h->judge, clock_mono_ms());
    }
}

static void report_hang(struct hang *h, uint64_t silent_ms)
{
    struct stack_findings f;

    if (stack_findings_make(&f, &h->sample) != 0) {
        hang_judge_not_reported(&h->judge, clock_mono_ms());
        return;
    }
    const struct hang_report report = { &h->sample, &f, silent_ms };
    h->opts.on_hang(h->opts.ctx, &report);
    stack_findings_fini(&f);
    forget_own_words(h);
}

static void hear_answers(struct hang *h, const struct hang_pulse *all, bool complete)
{
    const uint64_t silent_ms = MIN_OF(all->quiet_ms, all->calm_ms);

    h->asking = false;
    if (!h->on || h->asked != h->generation)
        return;
    switch (hang_judge_hear(&h->judge, clock_mono_ms(), all, complete)) {
    case HANG_SUSPECTED:
        read_suspects(h);
        break;
    case HANG_FOUND:
        report_hang(h, silent_ms);
        break;
    case HANG_OVER:
        h->opts.on_over(h->opts.ctx);
        break;
    case HANG_NOTHING:
        break;
    }
    if (h->judge.stage != HANG_SUSPECT)
        stack_sample_fini(&h->sample);
}

static void hang_on_answers(void *ctx, const struct session_answer *answers,
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
    hear_answers(h, &all, complete);
}

static void ask_nodes(struct hang *h)
{
    const struct hang_question q = hang_judge_ask(&h->judge);
    struct buf b;

    h->asking = true;
    h->asked = h->generation;
    if (!h->session || !session_shared(h->session)) {
        take_question(h, &q, NULL);
        return;
    }
    buf_init(&b, SIZE_MAX);
    if (hang_question_print(&b, &q) == 0 &&
        session_ask(h->session, KIND, buf_span(&b),
                    time_for_stacks(h->opts.time_ms) + TRAVEL_MS, hang_on_answers, h,
                    NULL) != 0)
        h->asking = false;
    buf_fini(&b);
}

static void ask_if_due(struct hang *h)
{
    if (!h->asking && clock_mono_ms() >= h->judge.due_ms &&
        h->opts.decides(h->opts.ctx))
        ask_nodes(h);
}

static void hang_on_timer(uv_timer_t *timer)
{
    struct hang *h = timer->data;
    const uint64_t now = clock_mono_ms();

    look_at_workers(h);
    ask_if_due(h);
    /* Often enough to ask in time if a rank may hang. */
    if ((h->judge.stage == HANG_LOOK || h->judge.stage == HANG_SUSPECT) &&
        h->judge.due_ms > now)
        uv_timer_set_repeat(timer, MIN_OF(LOOK_MS, MAX_OF(h->judge.due_ms - now, 20u)));
    else
        uv_timer_set_repeat(timer, MIN_OF(LOOK_MS, MAX_OF(h->opts.time_ms / 16, 20u)));
}

/* --- open and close --------------------------------------------------------------- */

/* Whether the files of so many workers leave most descriptors to everything else. */
static bool may_keep_open(size_t workers)
{
    struct rlimit limit;

    return getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
           workers <= limit.rlim_cur / (4 * FILES);
}

int hang_open(const struct hang_opts *opts, struct hang **out, struct muster_error *err)
{
    struct hang *h = mem_calloc(1, sizeof *h);

    if (!h)
        return err_nomem(err);
    h->opts = *opts;
    h->targets = mem_calloc(opts->most, sizeof *h->targets);
    h->workers = mem_calloc(opts->most, sizeof *h->workers);
    h->files = mem_calloc(2 * opts->most + 1, sizeof *h->files);
    if (!h->targets || !h->workers || !h->files ||
        hang_node_init(&h->node, opts->most, clock_mono_ms()) != 0) {
        h->closed = true;
        hang_release(h);
        return err_nomem(err);
    }
    for (size_t i = 0; i < opts->most; i++)
        memset(h->workers[i].fds, -1, sizeof h->workers[i].fds);
    h->keep_open = may_keep_open(opts->most);
    (void)uv_timer_init(opts->loop, &h->timer);
    h->timer.data = h;
    *out = h;
    return 0;
}

int hang_session(struct hang *h, struct session *session)
{
    h->session = session;
    return session_on_question(session, KIND, hang_on_question, h);
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
    for (size_t i = 0; i < h->opts.most; i++)
        close_files(&h->workers[i], 0);
}

static void hang_on_closed(uv_handle_t *handle)
{
    struct hang *h = handle->data;

    h->pending--;
    hang_release(h);
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
