/* status.c - glue between the agent and status/status.h: what this node tells of itself
 * when somebody asks. Everything is looked up then; nothing is kept up to date in
 * between. */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "agent/agent_int.h"
#include "auth/core/auth.h"
#include "base/err.h"
#include "base/mem.h"
#include "loop/clock.h"
#include "process/devices.h"
#include "process/proc.h"
#include "rendezvous/local_identity.h"
#include "stacks/core/findings.h"
#include "stacks/service.h"
#include "status/core/put.h"
#include "status/http.h"
#include "status/status.h"
#include "store/server.h"

#define SAMPLE_MS  200u /* a shorter time tells nothing of the use of a CPU */
#define LINES_MAX  7168 /* bytes of a log that are looked at */
#define LINES_KEPT 40

struct sample {
    pid_t pid;
    uint64_t at_ms, cpu_ms;
    uint32_t cpu; /* thousandths of one CPU, as of at_ms */
};

struct gpus {
    size_t count; /* 0 at the first look: there are none, and nobody looks again */
    struct device_use uses[NODE_GPUS_MAX];
    struct gpu_status told[NODE_GPUS_MAX]; /* with the names of uses */
};

struct agent_status {
    struct status *status;
    struct status_http *http;
    enum agent_core_phase shown; /* the viewers have been told of it */
    struct node_status own;
    struct worker_status *workers; /* owned, nproc of them, as is the next */
    struct sample *samples;
    struct buf wait;
    char spares[RDZV_NAMES_SIZE];
    struct store_rate rate;
    struct gpus *gpus; /* owned; NULL until somebody asks */
};

/* --- processes -------------------------------------------------------------------- */

/* Use of the CPU since the last look; at the first one, since the worker began. */
static void sample_cpu(struct sample *s, pid_t pid, uint64_t cpu_ms, uint64_t now_ms,
                       uint64_t began_ms)
{
    if (s->pid != pid)
        *s = (struct sample){ .pid = pid, .at_ms = began_ms };
    const uint64_t passed = now_ms - MIN_OF(s->at_ms, now_ms);
    if (passed < SAMPLE_MS)
        return;
    s->cpu = (uint32_t)((cpu_ms - MIN_OF(s->cpu_ms, cpu_ms)) * 1000 / passed);
    s->cpu_ms = cpu_ms;
    s->at_ms = now_ms;
}

static void describe_worker(struct agent *a, size_t i, struct worker_status *out)
{
    const struct agent_worker *w = &a->workers[i];
    const uint64_t hz = (uint64_t)sysconf(_SC_CLK_TCK),
                   page = (uint64_t)sysconf(_SC_PAGESIZE);
    struct sample *s = &a->status->samples[i];
    struct proc_stat stat;

    *out = (struct worker_status){ .pid = w->pid, .code = w->code };
    if (w->exited) {
        out->state = w->code == 0      ? WORKER_SUCCEEDED
                     : w->signalled_us ? WORKER_ENDED
                                       : WORKER_FAILED;
    } else if (w->pid == 0) {
        out->state = a->core.phase == AGENT_STARTING ? WORKER_STARTING : WORKER_NONE;
    } else if (proc_read_stat(w->pid, &stat)) {
        out->state =
            stat.state == 'T' || stat.state == 't' ? WORKER_STOPPED : WORKER_RUNNING;
        out->cpu_ms = stat.ticks * 1000 / hz;
        out->memory = stat.rss_pages * page;
        sample_cpu(s, w->pid, out->cpu_ms, clock_mono_ms(), a->started_ms);
        out->cpu = s->cpu;
    } else {
        out->state = WORKER_RUNNING; /* between its end and the guard's word of it */
    }
}

/* --- the node --------------------------------------------------------------------- */

static enum node_state node_state_of(const struct agent *a)
{
    static const enum node_state states[] = {
        [AGENT_NEW] = NODE_JOINING,       [AGENT_JOINING] = NODE_JOINING,
        [AGENT_ASSIGNING] = NODE_JOINING, [AGENT_STARTING] = NODE_STARTING,
        [AGENT_RUNNING] = NODE_RUNNING,   [AGENT_STOPPING] = NODE_STOPPING,
        [AGENT_KILLING] = NODE_STOPPING,  [AGENT_DRAINING] = NODE_STOPPING,
        [AGENT_JUDGING] = NODE_STOPPING,  [AGENT_BARRIER] = NODE_FINISHING,
        [AGENT_LEAVING] = NODE_FINISHING, [AGENT_DONE] = NODE_ENDED,
    };
    struct rdzv_progress p;

    if (a->core.phase == AGENT_JOINING && a->handler && a->handler->ops->progress &&
        a->handler->ops->progress(a->handler, &p) && p.stage == RDZV_AT_SPARE)
        return NODE_SPARE;
    return states[a->core.phase];
}

/* The stores in this process. */
static struct store_status describe_store(struct agent *a)
{
    const struct rdzv_handler_ops *ops = a->handler ? a->handler->ops : NULL;
    struct store_server_stats s;

    if (!ops || !ops->store_stats || !ops->store_stats(a->handler, &s))
        return (struct store_status){ 0 };
    return status_of_store(&s, &a->status->rate);
}

static void describe_gpus(struct agent_status *st)
{
    const struct devices_machine machine = devices_real(environ);
    struct gpus *g = st->gpus;

    if (!g)
        g = st->gpus = mem_calloc(1, sizeof *g);
    else if (g->count == 0)
        return;
    if (!g)
        return;
    g->count = devices_use(&machine, g->uses, NODE_GPUS_MAX);
    for (size_t i = 0; i < g->count; i++) {
        const struct device_use *u = &g->uses[i];

        g->told[i] = (struct gpu_status){ span_str(u->name), u->busy, u->celsius,
                                          u->memory, u->memory_total };
    }
    st->own.gpus = g->told;
    st->own.gpu_count = g->count;
}

static void describe_node(struct agent *a)
{
    struct agent_status *st = a->status;
    struct proc_stat self = { 0 };

    buf_clear(&st->wait);
    (void)agent_wait_text(a, &st->wait);
    (void)proc_read_stat(getpid(), &self);
    st->own = (struct node_status){
        .state = node_state_of(a),
        .round = a->round.store ? (int64_t)a->round.round : -1,
        .group_rank = a->assigned ? a->round.rank : -1,
        .first_rank = a->assigned ? a->range.base_rank : -1,
        .attempt = agent_core_attempt(&a->core),
        .pid = getpid(),
        .memory = self.rss_pages * (uint64_t)sysconf(_SC_PAGESIZE),
        .version = span_str(muster_version()),
        .wait = buf_span(&st->wait),
        .store = describe_store(a),
        .workers = st->workers,
        .worker_count = (size_t)a->config->nproc,
    };
    describe_gpus(st);
    for (size_t i = 0; i < st->own.worker_count; i++)
        describe_worker(a, i, &st->workers[i]);
}

static void describe_job(void *ctx, struct job_input *in)
{
    struct agent *a = ctx;
    const struct launch_config *c = a->config;

    describe_node(a);
    in->run_id = c->rdzv.run_id;
    in->backend = c->rdzv.backend;
    in->endpoint = c->rdzv.endpoint;
    in->max_restarts = c->max_restarts;
    in->nnodes_min = c->rdzv.min_nodes;
    in->nnodes_max = c->rdzv.max_nodes;
    in->began_us = a->began_us;
    in->now_us = clock_now().wall_us;
    in->host = a->host;
    in->addr = c->rdzv.local_addr ? c->rdzv.local_addr : "";
    in->agent_pid = getpid();
    in->own = &a->status->own;
    in->spares = a->status->spares;
    a->status->spares[0] = '\0';
    if (a->handler && a->handler->ops->spares)
        a->handler->ops->spares(a->handler, a->status->spares);
}

/* --- last lines ------------------------------------------------------------------- */

/* The end of a log file beside the worker's error file. */
static void add_tail(const struct agent_worker *w, const char *name, struct buf *out)
{
    const char *slash = w->error_file ? strrchr(w->error_file, '/') : NULL;
    char *path =
        slash ? mem_printf("%.*s/%s", (int)(slash - w->error_file), w->error_file, name)
              : NULL;
    const int fd = path ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    char text[LINES_MAX];

    mem_free(path);
    if (fd < 0)
        return;
    const off_t size = lseek(fd, 0, SEEK_END);
    const off_t from = size > LINES_MAX ? size - LINES_MAX : 0;
    const ssize_t n = pread(fd, text, sizeof text, from);
    close(fd);
    if (n <= 0)
        return;
    size_t at = (size_t)n, lines = 0;
    while (at > 0 && (text[at - 1] != '\n' || ++lines <= LINES_KEPT))
        at--;
    (void)buf_printf(out, "--- %s\n", name);
    (void)buf_append(out, text + at, (size_t)n - at);
}

static void last_lines(void *ctx, size_t local_rank, struct buf *out)
{
    const struct agent *a = ctx;

    add_tail(&a->workers[local_rank], "stdout.log", out);
    add_tail(&a->workers[local_rank], "stderr.log", out);
}

/* --- open and close --------------------------------------------------------------- */

int agent_status_check(struct agent *a, struct muster_error *err)
{
    struct http_address at;

    if (!a->config->status_http ||
        http_address_parse(a->config->status_http, &at, err) == 0)
        return 0;
    return err_wrap(err, "--status-http");
}

void agent_status_news(struct agent *a)
{
    if (a->status)
        status_changed(a->status->status);
}

void agent_status_changed(struct agent *a)
{
    if (!a->status || a->status->shown == a->core.phase)
        return;
    a->status->shown = a->core.phase;
    status_changed(a->status->status);
}

/* The key that opens the page to others: made out of the job's secret, so that it is
 * the same on every node and in every attempt, and tells nothing of the secret. */
static void page_key(const struct agent *a, char key[STATUS_KEY_SIZE])
{
    static const char label[] = "muster page key 1 ";
    const struct auth *auth = a->handler ? a->handler->auth : NULL;
    uint8_t digest[AUTH_PROOF];
    struct buf b;

    status_http_random_key(key);
    if (!auth || !auth->settings.key)
        return;
    buf_init(&b, SIZE_MAX);
    (void)buf_append_str(&b, label);
    (void)buf_append_str(&b, a->config->rdzv.run_id);
    if (buf_error(&b) == 0) {
        auth->settings.hmac(auth->settings.key, AUTH_SECRET, buf_span(&b), digest);
        for (size_t i = 0; i < sizeof digest; i++)
            snprintf(key + 2 * i, 3, "%02x", digest[i]);
    }
    buf_fini(&b);
}

static void open_page(struct agent *a)
{
    struct http_address at;
    struct muster_error why;
    char key[STATUS_KEY_SIZE];

    if (!a->config->status_http)
        return;
    page_key(a, key);
    if (http_address_parse(a->config->status_http, &at, &why) == 0 &&
        status_http_open(&a->loop, a->status->status, &at, key, &a->status->http,
                         &why) == 0)
        log_line(a->log, LOG_INFO, AT_AGENT, "the job's page: %s",
                 status_http_url(a->status->http));
    else
        log_line(a->log, LOG_WARN, AT_AGENT,
                 "--status-http=%s: %s\nThe job runs without its page.",
                 a->config->status_http, why.text);
}

/* --- stacks ----------------------------------------------------------------------- */

struct stacks_ask {
    status_lines_cb cb;
    void *ctx;
};

static void put_findings_text(struct buf *out, const struct stack_findings *f,
                              const struct stack_sample *s)
{
    struct buf text;

    buf_init(&text, SIZE_MAX);
    (void)stack_findings_print(&text, f, s);
    put_json(out, buf_span(&text));
    buf_fini(&text);
}

static void status_on_stacks(void *ctx, struct stack_sample *sample)
{
    struct stacks_ask *ask = ctx;
    struct stack_findings f;
    struct buf b;

    buf_init(&b, SIZE_MAX);
    if (stack_findings_make(&f, sample) != 0) {
        buf_fail(&b, MUSTER_ENOMEM);
    } else {
        buf_append_str(&b, "{\"schema\": \"muster-stacks/1\", ");
        (void)stack_findings_json(&b, &f);
        buf_append_str(&b, ", \"text\": ");
        put_findings_text(&b, &f, sample);
        buf_append_str(&b, "}\n");
        stack_findings_fini(&f);
    }
    ask->cb(ask->ctx, buf_span(&b), buf_error(&b) ? "out of memory" : NULL);
    buf_fini(&b);
    mem_free(ask);
}

/* As `muster stacks` prints them, for the page. */
static int status_read_stacks(void *ctx, status_lines_cb cb, void *cb_ctx)
{
    struct agent *a = ctx;
    struct stacks_ask *ask = a->stacks ? mem_alloc(sizeof *ask) : NULL;

    if (!ask)
        return MUSTER_ENOTSUP;
    *ask = (struct stacks_ask){ cb, cb_ctx };
    const int rc =
        stacks_of_job(a->stacks, STACKS_WAIT_MS, status_on_stacks, ask, NULL);
    if (rc != 0)
        mem_free(ask);
    return rc;
}

/* What `muster status --url` prints. */
static void status_on_url(void *ctx, struct local_request *r, const json_t *body)
{
    const struct agent *a = ctx;
    const struct status_http *h = a->status->http;

    (void)body;
    local_request_answer_json(
        r, h ? json_pack("{s:s, s:{s:s}}", "url", status_http_url(h), "job", "run_id",
                         a->config->rdzv.run_id)
             : json_pack("{s:{s:s}}", "job", "run_id", a->config->rdzv.run_id));
}

/* The job goes on without it: whatever fails here is only logged. */
void agent_status_open(struct agent *a)
{
    struct agent_status *st = mem_calloc(1, sizeof *st);
    const size_t n = (size_t)a->config->nproc;
    const struct status_opts opts = {
        .loop = &a->loop,
        .describe = describe_job,
        .last_lines = last_lines,
        .stacks = status_read_stacks,
        .ctx = a,
    };
    struct muster_error why = { 0 };

    if (!st)
        return;
    buf_init(&st->wait, NODE_WAIT_MAX);
    st->workers = mem_calloc(n, sizeof *st->workers);
    st->samples = mem_calloc(n, sizeof *st->samples);
    st->rate.at_ms = clock_mono_ms();
    a->status = st;
    int rc = st->workers && st->samples ? 0 : MUSTER_ENOMEM;
    if (rc == 0)
        rc = status_open(&opts, &st->status, &why);
    if (rc == 0)
        rc = status_set_session(st->status, a->job.session);
    if (rc == 0)
        rc = local_socket_open(&a->loop, &a->local, &why);
    if (rc == 0)
        rc = status_serve_local(st->status, a->local);
    if (rc == 0)
        rc = local_socket_register(a->local, "url", status_on_url, a);
    if (st->status)
        open_page(a);
    if (rc != 0)
        log_line(a->log, LOG_DEBUG, AT_AGENT, "no status: %s", why.text);
}

void agent_status_close(struct agent *a)
{
    struct agent_status *st = a->status;

    local_socket_close(a->local);
    a->local = NULL;
    if (!st)
        return;
    status_http_close(st->http);
    status_close(st->status);
    st->http = NULL;
    st->status = NULL;
}

void agent_status_free(struct agent *a)
{
    if (!a->status)
        return;
    buf_fini(&a->status->wait);
    mem_free(a->status->workers);
    mem_free(a->status->samples);
    mem_free(a->status->gpus);
    mem_free(a->status);
    a->status = NULL;
}
