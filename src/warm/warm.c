/* warm.c - see warm.h. Callbacks of the guard and of the server's lines feed warm_core;
 * what it says is done here. */
#include "warm/warm.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "launch/core/options.h"
#include "launch/core/worker_env.h"
#include "loop/blocking_call.h"
#include "loop/file.h"
#include "process/cgroup.h"
#include "warm/core/warm_core.h"
#include "warm/warm_cache.h"

#define ANSWER_MS                                                                      \
    15000 /* A fork takes milliseconds; a server that was stopped never answers. */
#define LINE_MAX_    65536
#define ARROW_MALLOC "JE_ARROW_MALLOC_CONF"
#define KEEP_MS      5000  /* without a new module: the worker is at work */
#define WAIT_MS      60000 /* that a module takes before the user is told */
#define LATE_MS      5000  /* that workers wait for modules to be left out */

/* The program of the interpreter, made at build time (embed.py). */
extern const unsigned char warm_program[];
extern const size_t warm_program_size;

struct warm {
    struct warm_opts opts;
    struct warm_core core;
    struct guard_service *service; /* NULL: none, or gone */
    int pipe;                      /* the server's lines; -1: none */
    uv_poll_t *poll;               /* on the heap: it outlives a server by a turn */
    struct buf lines;
    uv_timer_t timer; /* while asked > 0, or there is something to keep */
    int64_t asked;
    uint64_t late_ms; /* loop time: since a module had to be left out; 0: none */
    struct blocking_call *keeping; /* owned while it runs */
};

static void start_server(struct warm *w);

static void warm_log(const struct warm *w, const struct warm_text *t)
{
    if (t->level != WARM_QUIET)
        log_line(w->opts.log, t->level == WARM_WARN ? LOG_WARN : LOG_INFO, AT_WARM,
                 "%s", t->text);
}

/* --- what --warm=auto has learned ------------------------------------------------- */

static void on_kept(void *ctx, void *data)
{
    struct warm *w = ctx;

    (void)data;
    w->keeping = NULL;
}

/* In a thread, since a home directory may hang; the end of the job waits for it. */
static void keep_learned(struct warm *w, bool wait)
{
    struct warm_kept *kept = NULL;

    if (!w->core.changed || w->keeping)
        return;
    w->core.changed = false;
    if (warm_cache_prepare(w->opts.config, w->opts.envp, &w->core, &kept) != 0)
        return;
    if (!wait && blocking_call_run(w->opts.loop, warm_cache_write, kept, MONO_NEVER,
                                   on_kept, w, &w->keeping, NULL) == 0)
        return;
    warm_cache_write(kept);
    mem_free(kept);
}

/* --- waiting for answers ---------------------------------------------------------- */

static void warm_on_timer(uv_timer_t *timer)
{
    struct warm *w = timer->data;
    struct warm_text text;

    if (w->asked == 0)
        keep_learned(w, false);
    if (w->asked > 0 && w->service && w->core.phase == WARM_IMPORTING && w->late_ms) {
        warm_core_late(&w->core, LATE_MS, &text);
        warm_log(w, &text);
        guard_service_signal(w->service, SIGKILL);
    } else if (w->asked > 0 && w->service && w->core.phase == WARM_IMPORTING) {
        warm_core_slow(&w->core, WAIT_MS, &text);
        warm_log(w, &text);
    }
    if (w->asked == 0 || !w->service || w->core.phase != WARM_READY)
        return;
    log_line(
        w->opts.log, LOG_WARN, AT_WARM,
        "--warm: the interpreter has not answered for %d s; workers start the ordinary "
        "way",
        ANSWER_MS / 1000);
    guard_service_signal(w->service, SIGKILL);
}

/* Of a module that was learned and does not do, the first time is free; after LATE_MS
 * in all the workers do without. What the user named is waited for. */
static uint64_t late_in(struct warm *w)
{
    const uint64_t now = uv_now(w->opts.loop);

    if (!w->core.left_out || !w->core.learning)
        w->late_ms = 0;
    else if (w->late_ms == 0)
        w->late_ms = now;
    if (w->late_ms == 0)
        return WAIT_MS;
    return now - w->late_ms < LATE_MS ? LATE_MS - (now - w->late_ms) : 0;
}

static void warm_arm(struct warm *w)
{
    const uint64_t late = late_in(w);

    if (w->core.late)
        uv_timer_stop(&w->timer);
    else if (w->asked > 0 && w->core.phase == WARM_READY)
        uv_timer_start(&w->timer, warm_on_timer, ANSWER_MS, 0);
    else if (w->asked > 0 && w->core.phase == WARM_IMPORTING)
        uv_timer_start(&w->timer, warm_on_timer, late, 0);
    else if (w->asked == 0 && w->core.changed)
        uv_timer_start(&w->timer, warm_on_timer, KEEP_MS, 0);
    else
        uv_timer_stop(&w->timer);
}

void warm_asked(struct warm *w)
{
    w->asked++;
    warm_arm(w);
}

void warm_answered(struct warm *w, bool forked)
{
    w->asked -= w->asked > 0;
    if (forked)
        warm_core_forked(&w->core);
    warm_arm(w);
}

/* --- lines of the server ---------------------------------------------------------- */

static void take_lines(struct warm *w)
{
    for (;;) {
        const uint8_t *data = buf_data(&w->lines);
        const size_t n = buf_len(&w->lines);
        const uint8_t *end = n ? memchr(data, '\n', n) : NULL;
        struct warm_text text;

        if (!end)
            break;
        (void)warm_core_line(&w->core, span_of(data, (size_t)(end - data)), &text);
        buf_consume(&w->lines, (size_t)(end - data) + 1);
        warm_log(w, &text);
    }
    warm_arm(w);
}

static void on_poll_closed(uv_handle_t *h)
{
    mem_free(h);
}

static void close_pipe(struct warm *w)
{
    if (w->poll)
        uv_close((uv_handle_t *)w->poll, on_poll_closed);
    w->poll = NULL;
    if (w->pipe >= 0)
        close(w->pipe);
    w->pipe = -1;
    buf_clear(&w->lines);
}

/* False at its end, and when a line is longer than any of ours. */
static bool read_pipe(struct warm *w)
{
    for (;;) {
        uint8_t *room = buf_room(&w->lines, 4096);
        const ssize_t n = room ? read(w->pipe, room, 4096) : 0;

        if (n < 0)
            return errno == EAGAIN || errno == EINTR;
        if (n == 0)
            return false;
        buf_commit(&w->lines, (size_t)n);
        take_lines(w);
    }
}

static void warm_on_readable(uv_poll_t *poll, int status, int events)
{
    struct warm *w = poll->data;

    (void)events;
    if (status < 0 || !read_pipe(w))
        close_pipe(w);
}

/* --- the server ------------------------------------------------------------------- */

static void on_service_exited(void *ctx, int status, int errnum)
{
    struct warm *w = ctx;
    struct warm_text text;

    w->service = NULL;
    if (w->pipe >= 0)
        (void)read_pipe(w); /* its last line says why */
    close_pipe(w);
    const bool again = warm_core_exited(&w->core, status, errnum, &text);
    warm_log(w, &text);
    if (again)
        start_server(w);
    warm_arm(w);
}

static const struct guard_service_events service_events = {
    .on_exited = on_service_exited,
};

static bool is_variable(const char *entry, const char *name)
{
    const size_t n = strlen(name);

    return strncmp(entry, name, n) == 0 && entry[n] == '=';
}

/* Half of what the machine has left, or of what our control group may use if that is
 * less: the server must not take the job's memory. */
static unsigned long long memory_limit_kb(void)
{
    unsigned long long kb = 0;
    char line[256];
    FILE *f = fopen("/proc/meminfo", "re");

    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu", &kb) == 1)
            break;
    if (f)
        fclose(f);
    const int64_t group = cgroup_memory("", CGROUP_LIMIT);
    if (group >= 0 && (kb == 0 || (unsigned long long)group / 1024 < kb))
        kb = (unsigned long long)group / 1024;
    return kb / 2;
}

/* Names between commas, and a NUL. */
static void put_names(struct buf *b, char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++)
        (void)buf_printf(b, "%s%s", i ? "," : "", names[i]);
    (void)buf_u8(b, 0);
}

/* The environment of a worker, but with one thread for every library: a process with
 * several threads cannot be forked safely. */
static int server_env(const struct warm *w, struct text_list *env)
{
    static const char *const ours[] = {
        "PYTHONPATH",           "OMP_NUM_THREADS",    "MKL_NUM_THREADS",
        "OPENBLAS_NUM_THREADS", "MUSTER_WARM_SERVER", "MUSTER_WARM_LISTS_SIZE",
        "MUSTER_WARM_OPTIONAL", "MUSTER_WARM_LEARN",  "MUSTER_WARM_MEMORY_KB",
        "MUSTER_WARM_ENV_SIZE", "MUSTER_WARM_FLAGS",  "MUSTER_WARM_TRACER",
        "MUSTER_WARM_FILES",    "MUSTER_TOKEN", /* which is for agents only */
    };
    const char *path = env_get(w->opts.envp, "PYTHONPATH");
    char *files = strcmp(w->opts.config->warm, "auto") == 0
                      ? warm_cache_files(w->opts.config, w->opts.envp)
                      : NULL;
    char number[32];

    for (char *const *e = w->opts.envp; e && *e; e++) {
        bool skip = false;

        for (size_t i = 0; i < ARRAY_LEN(ours); i++)
            skip = skip || is_variable(*e, ours[i]);
        if (!skip)
            (void)text_list_add(env, *e, strlen(*e));
    }
    char *paths = path && *path ? mem_printf("/proc/self/fd/5:%s", path)
                                : mem_strdup("/proc/self/fd/5");
    (void)snprintf(number, sizeof number, "%llu", memory_limit_kb());
    if (!paths)
        env->err = MUSTER_ENOMEM;
    (void)env_put(env, "PYTHONPATH", paths ? paths : "");
    (void)env_put(env, "OMP_NUM_THREADS", "1");
    (void)env_put(env, "MKL_NUM_THREADS", "1");
    (void)env_put(env, "OPENBLAS_NUM_THREADS", "1");
    if (!env_get(w->opts.envp, ARROW_MALLOC)) /* pyarrow's has a thread by default */
        (void)env_put(env, ARROW_MALLOC, "background_thread:false");
    (void)env_put(env, "MUSTER_WARM_SERVER", "1");
    (void)env_put(env, "MUSTER_WARM_OPTIONAL", w->core.optional ? "1" : "0");
    (void)env_put(env, "MUSTER_WARM_LEARN", w->core.learning ? "1" : "0");
    (void)env_put(env, "MUSTER_WARM_FILES", files ? files : "");
    (void)env_put(env, "MUSTER_WARM_MEMORY_KB", number);
    (void)snprintf(number, sizeof number, "%d", (int)getpid());
    (void)env_put(env, "MUSTER_WARM_TRACER", number);
    mem_free(paths);
    mem_free(files);
    return env->err;
}

/* python -u -c STUB and what a worker has behind -u: see server.py. */
static int server_argv(const struct warm *w, struct text_list *argv)
{
    static const char stub[] = "import os; os._exit(77)";
    struct text_list worker = { 0 };
    int rc = worker_argv(&worker, w->opts.config, &(struct worker_place){ 0 }, NULL);

    for (size_t i = 0; rc == 0 && i < worker.count; i++) {
        (void)text_list_add(argv, worker.items[i], strlen(worker.items[i]));
        if (i == 1) {
            (void)text_list_add(argv, "-c", 2);
            (void)text_list_add(argv, stub, sizeof stub - 1);
        }
    }
    text_list_fini(&worker);
    return rc ? rc : argv->err;
}

/* The environment, each variable with its NUL; the modules that were chosen, learned
 * and left out; and the zip file behind them: Python does not mind bytes in front of
 * one. From the first the server learns what a wrapper around the interpreter has
 * changed. */
static int program_fd(const struct warm *w, struct text_list *env)
{
    const struct text_list *modules = &w->core.modules, *never = &w->core.never;
    const size_t chosen = w->core.chosen;
    const int fd = memfd_create("muster-warm", MFD_CLOEXEC);
    char size[24], lists[24];
    struct buf b;
    int rc = fd >= 0 ? 0 : MUSTER_EIO;

    buf_init(&b, 64u << 20);
    for (size_t i = 0; i < env->count; i++)
        (void)buf_append(&b, env->items[i], strlen(env->items[i]) + 1);
    const size_t before = buf_len(&b);
    put_names(&b, modules->items, chosen);
    put_names(&b, modules->items + chosen, modules->count - chosen);
    put_names(&b, never->items, never->count);
    (void)snprintf(size, sizeof size, "%zu", before);
    (void)snprintf(lists, sizeof lists, "%zu", buf_len(&b) - before);
    (void)buf_append(&b, warm_program, warm_program_size);
    (void)env_put(env, "MUSTER_WARM_ENV_SIZE", size);
    (void)env_put(env, "MUSTER_WARM_LISTS_SIZE", lists);
    if (buf_error(&b) || env->err)
        rc = MUSTER_ENOMEM;
    if (rc == 0 && !file_write_all(fd, buf_span(&b)))
        rc = MUSTER_EIO;
    buf_fini(&b);
    if (rc == 0 || fd < 0)
        return fd;
    close(fd);
    return -1;
}

static int watch_pipe(struct warm *w, int fd)
{
    uv_poll_t *poll = mem_calloc(1, sizeof *poll);

    if (!poll || uv_poll_init(w->opts.loop, poll, fd) != 0) {
        mem_free(poll);
        return MUSTER_ENOMEM;
    }
    poll->data = w;
    w->poll = poll;
    w->pipe = fd;
    return uv_poll_start(poll, UV_READABLE, warm_on_readable) == 0 ? 0 : MUSTER_EIO;
}

static void start_server(struct warm *w)
{
    struct text_list argv = { 0 }, env = { 0 };
    int lines[2] = { -1, -1 };
    int program = -1;
    /* Not a pipe: workers write to it, too, and must not get a SIGPIPE. */
    int rc =
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, lines) == 0 ? 0 : MUSTER_EIO;

    w->pipe = -1;
    if (rc == 0)
        rc = server_argv(w, &argv);
    if (rc == 0)
        rc = server_env(w, &env);
    if (rc == 0 && (program = program_fd(w, &env)) < 0)
        rc = MUSTER_EIO;
    if (rc == 0 && fcntl(lines[0], F_SETFL, O_NONBLOCK) == 0) {
        const struct guard_service_spec spec = {
            .proc = { .argv = argv.items,
                      .envp = env.items,
                      .fd = { -1, -1, -1 },
                      .session = true },
            .fds = { lines[1], program },
            .forks = true,
        };
        rc = guard_service_start(w->opts.guard, &spec, &service_events, w, &w->service,
                                 NULL);
    }
    if (rc == 0)
        rc = watch_pipe(w, lines[0]);
    if (rc != 0 && w->pipe < 0 && lines[0] >= 0)
        close(lines[0]);
    if (lines[1] >= 0)
        close(lines[1]);
    if (program >= 0)
        close(program);
    text_list_fini(&argv);
    text_list_fini(&env);
    if (rc != 0 && !w->service) {
        w->core.phase = WARM_GIVEN_UP;
        log_line(w->opts.log, LOG_WARN, AT_WARM,
                 "--warm: the interpreter could not be started (%s); workers start the "
                 "ordinary way",
                 strerror(errno));
    }
}

const struct guard_service *warm_service(const struct warm *w, bool may_wait)
{
    const bool will_be = w && (w->core.phase == WARM_READY ||
                               (may_wait && w->core.phase == WARM_IMPORTING));

    return will_be ? w->service : NULL;
}

/* --- open and close --------------------------------------------------------------- */

int warm_open(const struct warm_opts *opts, struct warm **out, struct muster_error *err)
{
    struct warm *w = mem_calloc(1, sizeof *w);
    struct buf known;
    int rc;

    if (!w)
        return err_nomem(err);
    w->opts = *opts;
    w->pipe = -1;
    rc = warm_core_init(&w->core, opts->config->warm, err);
    if (rc != 0) {
        mem_free(w);
        return rc;
    }
    buf_init(&known, 2u << 20);
    if (w->core.learning) {
        warm_cache_read(opts->config, opts->envp, &known);
        (void)warm_core_learned(&w->core, buf_span(&known));
    }
    buf_fini(&known);
    buf_init(&w->lines, LINE_MAX_);
    uv_timer_init(opts->loop, &w->timer);
    w->timer.data = w;
    start_server(w);
    *out = w;
    return 0;
}

static void warm_on_timer_closed(uv_handle_t *h)
{
    struct warm *w = h->data;

    buf_fini(&w->lines);
    warm_core_fini(&w->core);
    mem_free(w);
}

void warm_close(struct warm *w)
{
    if (!w)
        return;
    if (w->pipe >= 0)
        (void)read_pipe(w); /* what the workers imported last */
    blocking_call_cancel(w->keeping);
    w->keeping = NULL;
    keep_learned(w, true);
    guard_service_forget(w->service);
    close_pipe(w);
    uv_close((uv_handle_t *)&w->timer, warm_on_timer_closed);
}
