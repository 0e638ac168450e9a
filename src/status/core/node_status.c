/* node_status.c - see node_status.h. */
#include "status/core/node_status.h"

#include <assert.h>

#include "base/err.h"
#include "base/mem.h"

#define FORMAT 1u

static const char *const node_words[] = {
#define NODE_STATE_WORD(name, word) [NODE_##name] = word,
    NODE_STATES(NODE_STATE_WORD)
#undef NODE_STATE_WORD
};

static const char *const worker_words[] = {
#define WORKER_STATE_WORD(name, word) [WORKER_##name] = word,
    WORKER_STATES(WORKER_STATE_WORD)
#undef WORKER_STATE_WORD
};

const char *node_state_word(enum node_state s)
{
    return (unsigned)s < NODE_STATE_COUNT ? node_words[s] : "unknown";
}

const char *worker_state_word(enum worker_state s)
{
    return (unsigned)s < WORKER_STATE_COUNT ? worker_words[s] : "none";
}

/* ---- bytes ---- */

#define WORKER_BYTES 33u

static void put_text(struct buf *out, struct span text, size_t most)
{
    const size_t n = MIN_OF(text.n, most);

    (void)buf_u32(out, (uint32_t)n);
    (void)buf_append(out, text.p, n);
}

static void put_worker(struct buf *out, const struct worker_status *w)
{
    (void)buf_u8(out, (uint8_t)w->state);
    (void)buf_u64(out, (uint64_t)w->pid);
    (void)buf_u32(out, (uint32_t)(int32_t)w->code);
    (void)buf_u64(out, w->memory);
    (void)buf_u32(out, w->cpu);
    (void)buf_u64(out, w->cpu_ms);
}

/* A format byte, then fields of a fixed size, then the texts, workers and GPUs. */
void node_status_encode(struct buf *out, const struct node_status *n)
{
    const size_t workers = MIN_OF(n->worker_count, (size_t)NODE_WORKERS_MAX);
    const size_t gpus = MIN_OF(n->gpu_count, (size_t)NODE_GPUS_MAX);
    const struct store_status *s = &n->store;

    (void)buf_u8(out, FORMAT);
    (void)buf_u8(out, (uint8_t)n->state);
    (void)buf_u64(out, (uint64_t)n->round);
    (void)buf_u64(out, (uint64_t)n->group_rank);
    (void)buf_u64(out, (uint64_t)n->first_rank);
    (void)buf_u64(out, (uint64_t)n->attempt);
    (void)buf_u64(out, (uint64_t)n->pid);
    (void)buf_u64(out, n->memory);
    (void)buf_u8(out, s->present);
    (void)buf_u64(out, s->requests);
    (void)buf_u64(out, s->answers);
    (void)buf_u64(out, s->bytes_in);
    (void)buf_u64(out, s->bytes_out);
    (void)buf_u64(out, s->connections);
    (void)buf_u64(out, s->keys);
    (void)buf_u32(out, s->rate);
    put_text(out, n->version, NODE_VERSION_MAX);
    put_text(out, n->wait, NODE_WAIT_MAX);
    (void)buf_u32(out, (uint32_t)workers);
    for (size_t i = 0; i < workers; i++)
        put_worker(out, &n->workers[i]);
    (void)buf_u32(out, (uint32_t)gpus);
    for (size_t i = 0; i < gpus; i++) {
        (void)buf_u32(out, n->gpus[i].busy);
        (void)buf_u32(out, n->gpus[i].celsius);
        (void)buf_u64(out, n->gpus[i].memory);
        (void)buf_u64(out, n->gpus[i].memory_total);
        put_text(out, n->gpus[i].name, NODE_GPU_NAME);
    }
}

struct reader {
    struct span rest;
    bool truncated; /* bytes are missing: reads give 0 from then on */
};

static const uint8_t *take(struct reader *r, size_t n)
{
    const uint8_t *p = r->rest.p;

    if (r->truncated || r->rest.n < n) {
        r->truncated = true;
        return NULL;
    }
    assert(n <= r->rest.n);
    r->rest = span_of(p + n, r->rest.n - n);
    return p;
}

static uint64_t take_u64(struct reader *r)
{
    const uint8_t *p = take(r, 8);

    return p ? get_u64(p) : 0;
}

static int64_t take_i64(struct reader *r)
{
    return (int64_t)take_u64(r);
}

static uint32_t take_u32(struct reader *r)
{
    const uint8_t *p = take(r, 4);

    return p ? get_u32(p) : 0;
}

static uint8_t take_u8(struct reader *r)
{
    const uint8_t *p = take(r, 1);

    return p ? *p : 0;
}

static struct span take_text(struct reader *r, size_t most)
{
    const size_t n = take_u32(r);
    const uint8_t *p = n <= most ? take(r, n) : NULL;

    if (n > most)
        r->truncated = true;
    return p ? span_of(p, n) : span_of(NULL, 0);
}

static void take_worker(struct reader *r, struct worker_status *w)
{
    const uint8_t state = take_u8(r);

    w->state = state < WORKER_STATE_COUNT ? (enum worker_state)state : WORKER_NONE;
    w->pid = take_i64(r);
    w->code = (int32_t)take_u32(r);
    w->memory = take_u64(r);
    w->cpu = take_u32(r);
    w->cpu_ms = take_u64(r);
}

static int take_gpus(struct reader *r, struct node_status *n)
{
    const uint32_t count = take_u32(r);

    if (r->truncated || count > NODE_GPUS_MAX)
        return MUSTER_EPROTO;
    if (count == 0)
        return 0;
    n->gpus = mem_calloc(count, sizeof *n->gpus);
    if (!n->gpus)
        return MUSTER_ENOMEM;
    for (n->gpu_count = 0; n->gpu_count < count; n->gpu_count++) {
        struct gpu_status *g = &n->gpus[n->gpu_count];

        g->busy = take_u32(r);
        g->celsius = take_u32(r);
        g->memory = take_u64(r);
        g->memory_total = take_u64(r);
        g->name = take_text(r, NODE_GPU_NAME);
    }
    return r->truncated ? MUSTER_EPROTO : 0;
}

int node_status_decode(struct span bytes, struct node_status *out,
                       struct muster_error *err)
{
    struct reader r = { bytes, false };
    struct node_status n = { 0 };
    struct store_status *s = &n.store;

    if (take_u8(&r) != FORMAT)
        return err_set(err, MUSTER_EPROTO, "a node's status has an unknown format");
    const uint8_t state = take_u8(&r);
    n.state = state <= NODE_SPARE ? (enum node_state)state : NODE_UNKNOWN;
    n.round = take_i64(&r);
    n.group_rank = take_i64(&r);
    n.first_rank = take_i64(&r);
    n.attempt = take_i64(&r);
    n.pid = take_i64(&r);
    n.memory = take_u64(&r);
    s->present = take_u8(&r) != 0;
    s->requests = take_u64(&r);
    s->answers = take_u64(&r);
    s->bytes_in = take_u64(&r);
    s->bytes_out = take_u64(&r);
    s->connections = take_u64(&r);
    s->keys = take_u64(&r);
    s->rate = take_u32(&r);
    n.version = take_text(&r, NODE_VERSION_MAX);
    n.wait = take_text(&r, NODE_WAIT_MAX);
    n.worker_count = take_u32(&r);
    if (r.truncated || n.worker_count > NODE_WORKERS_MAX ||
        n.worker_count > r.rest.n / WORKER_BYTES)
        return err_set(err, MUSTER_EPROTO, "a node's status is cut off");
    if (n.worker_count) {
        n.workers = mem_calloc(n.worker_count, sizeof *n.workers);
        if (!n.workers)
            return err_nomem(err);
    }
    for (size_t i = 0; i < n.worker_count; i++)
        take_worker(&r, &n.workers[i]);
    const int rc = take_gpus(&r, &n);
    if (rc != 0) {
        node_status_fini(&n);
        return rc == MUSTER_ENOMEM
                   ? err_nomem(err)
                   : err_set(err, rc, "a node's status is cut off at its GPUs");
    }
    *out = n;
    return 0;
}

void node_status_fini(struct node_status *n)
{
    if (!n)
        return;
    mem_free(n->workers);
    mem_free(n->gpus);
    *n = (struct node_status){ 0 };
}

uint64_t node_status_memory(const struct node_status *n)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < n->worker_count; i++)
        sum += n->workers[i].memory;
    return sum;
}

uint64_t node_status_cpu(const struct node_status *n)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < n->worker_count; i++)
        sum += n->workers[i].cpu;
    return sum;
}

size_t node_status_alive(const struct node_status *n)
{
    size_t count = 0;

    for (size_t i = 0; i < n->worker_count; i++)
        count += n->workers[i].state == WORKER_STARTING ||
                 n->workers[i].state == WORKER_RUNNING ||
                 n->workers[i].state == WORKER_STOPPED;
    return count;
}

#define RATE_MS 500u /* A rate over a shorter time would mean little. */

uint32_t store_rate(struct store_rate *r, uint64_t requests, uint64_t now_ms)
{
    const uint64_t passed = now_ms - MIN_OF(r->at_ms, now_ms);

    if (passed < RATE_MS)
        return r->rate;
    r->rate = (uint32_t)((requests - MIN_OF(r->requests, requests)) * 1000 / passed);
    r->requests = requests;
    r->at_ms = now_ms;
    return r->rate;
}
