/* node_status.c - see node_status.h. */
#include "status/core/node_status.h"

#include "base/err.h"
#include "base/field.h"
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

/* Behind a format byte and the state, in this order; a store, the workers and the GPUs
 * are between and behind them. */
static const struct field head_fields[] = {
    FIELD_NUMBER(node_status, round),      FIELD_NUMBER(node_status, group_rank),
    FIELD_NUMBER(node_status, first_rank), FIELD_NUMBER(node_status, attempt),
    FIELD_NUMBER(node_status, pid),        FIELD_NUMBER(node_status, memory),
};

static const struct field store_fields[] = {
    FIELD_NUMBER(store_status, requests),    FIELD_NUMBER(store_status, answers),
    FIELD_NUMBER(store_status, bytes_in),    FIELD_NUMBER(store_status, bytes_out),
    FIELD_NUMBER(store_status, connections), FIELD_NUMBER(store_status, keys),
    FIELD_NUMBER(store_status, rate),
};

static const struct field text_fields[] = {
    FIELD_TEXT(node_status, version, NODE_VERSION_MAX),
    FIELD_TEXT(node_status, wait, NODE_WAIT_MAX),
};

static const struct field worker_fields[] = {
    FIELD_NUMBER(worker_status, pid),    FIELD_NUMBER(worker_status, code),
    FIELD_NUMBER(worker_status, memory), FIELD_NUMBER(worker_status, cpu),
    FIELD_NUMBER(worker_status, cpu_ms),
};

static const struct field gpu_fields[] = {
    FIELD_NUMBER(gpu_status, busy),
    FIELD_NUMBER(gpu_status, celsius),
    FIELD_NUMBER(gpu_status, memory),
    FIELD_NUMBER(gpu_status, memory_total),
    FIELD_TEXT(gpu_status, name, NODE_GPU_NAME),
};

#define PUT_FIELDS(out, fields, from)                                                  \
    buf_fail(out, fields_put(out, fields, ARRAY_LEN(fields), from))
#define GET_FIELDS(rest, fields, to)                                                   \
    fields_get(rest, fields, ARRAY_LEN(fields), to, "a node's status", err)

/* Reads one of a few values; one that is not known becomes 0. */
static int get_byte(struct span *rest, uint8_t count, uint8_t *out,
                    struct muster_error *err)
{
    if (rest->n == 0)
        return err_set(err, MUSTER_EPROTO, "a node's status is cut off");
    *out = *rest->p < count ? *rest->p : 0;
    *rest = span_skip(*rest, 1);
    return 0;
}

static int get_count(struct span *rest, size_t most, size_t *out,
                     struct muster_error *err)
{
    if (rest->n < 4 || get_u32(rest->p) > most)
        return err_set(err, MUSTER_EPROTO, "a node's status is cut off");
    *out = get_u32(rest->p);
    *rest = span_skip(*rest, 4);
    return 0;
}

static struct span cut_text(struct span text, size_t most)
{
    return span_of(text.p, MIN_OF(text.n, most));
}

void node_status_encode(struct buf *out, const struct node_status *n)
{
    const size_t workers = MIN_OF(n->worker_count, (size_t)NODE_WORKERS_MAX);
    const size_t gpus = MIN_OF(n->gpu_count, (size_t)NODE_GPUS_MAX);
    const struct node_status cut = { .version = cut_text(n->version, NODE_VERSION_MAX),
                                     .wait = cut_text(n->wait, NODE_WAIT_MAX) };

    (void)buf_u8(out, FORMAT);
    (void)buf_u8(out, (uint8_t)n->state);
    PUT_FIELDS(out, head_fields, n);
    (void)buf_u8(out, n->store.present);
    PUT_FIELDS(out, store_fields, &n->store);
    PUT_FIELDS(out, text_fields, &cut);
    (void)buf_u32(out, (uint32_t)workers);
    for (size_t i = 0; i < workers; i++) {
        (void)buf_u8(out, (uint8_t)n->workers[i].state);
        PUT_FIELDS(out, worker_fields, &n->workers[i]);
    }
    (void)buf_u32(out, (uint32_t)gpus);
    for (size_t i = 0; i < gpus; i++) {
        struct gpu_status g = n->gpus[i];

        g.name = cut_text(g.name, NODE_GPU_NAME);
        PUT_FIELDS(out, gpu_fields, &g);
    }
}

static int get_workers(struct span *rest, struct node_status *n,
                       struct muster_error *err)
{
    int rc = get_count(rest, MIN_OF(NODE_WORKERS_MAX, rest->n / WORKER_BYTES),
                       &n->worker_count, err);

    if (rc != 0 || n->worker_count == 0)
        return rc;
    n->workers = mem_calloc(n->worker_count, sizeof *n->workers);
    if (!n->workers)
        return err_nomem(err);
    for (size_t i = 0; rc == 0 && i < n->worker_count; i++) {
        uint8_t state = 0;

        rc = get_byte(rest, WORKER_STATE_COUNT, &state, err);
        n->workers[i].state = (enum worker_state)state;
        if (rc == 0)
            rc = GET_FIELDS(rest, worker_fields, &n->workers[i]);
    }
    return rc;
}

static int get_gpus(struct span *rest, struct node_status *n, struct muster_error *err)
{
    int rc = get_count(rest, NODE_GPUS_MAX, &n->gpu_count, err);

    if (rc != 0 || n->gpu_count == 0)
        return rc;
    n->gpus = mem_calloc(n->gpu_count, sizeof *n->gpus);
    if (!n->gpus)
        return err_nomem(err);
    for (size_t i = 0; rc == 0 && i < n->gpu_count; i++)
        rc = GET_FIELDS(rest, gpu_fields, &n->gpus[i]);
    return rc;
}

int node_status_decode(struct span bytes, struct node_status *out,
                       struct muster_error *err)
{
    struct node_status n = { 0 };
    uint8_t state = 0, present = 0;
    int rc;

    if (bytes.n == 0 || *bytes.p != FORMAT)
        return err_set(err, MUSTER_EPROTO, "a node's status has an unknown format");
    bytes = span_skip(bytes, 1);
    rc = get_byte(&bytes, NODE_SPARE + 1, &state, err);
    if (rc == 0)
        rc = GET_FIELDS(&bytes, head_fields, &n);
    if (rc == 0)
        rc = get_byte(&bytes, UINT8_MAX, &present, err);
    if (rc == 0)
        rc = GET_FIELDS(&bytes, store_fields, &n.store);
    if (rc == 0)
        rc = GET_FIELDS(&bytes, text_fields, &n);
    if (rc == 0)
        rc = get_workers(&bytes, &n, err);
    if (rc == 0)
        rc = get_gpus(&bytes, &n, err);
    if (rc != 0) {
        node_status_fini(&n);
        return rc;
    }
    n.state = (enum node_state)state;
    n.store.present = present != 0;
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

bool worker_is_alive(enum worker_state s)
{
    return s == WORKER_STARTING || s == WORKER_RUNNING || s == WORKER_STOPPED;
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
