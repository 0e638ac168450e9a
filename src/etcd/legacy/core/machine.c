/* machine.c - see machine.h: events, effects, and going from phase to phase. What
 * follows which answer is in machine_phases.c.
 *
 * Steps do not check for memory one by one: buffers remember a failure, and so does
 * legacy_no_memory(). legacy_step() looks at the end. */
#include "etcd/legacy/core/machine.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "etcd/legacy/core/machine_int.h"
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#define RETRY_MS 1000u /* torch's pause between attempts */

void legacy_emit(struct legacy_fx *fx, const struct legacy_effect *e)
{
    assert(fx->count < LEGACY_FX_MAX);
    fx->at[fx->count++] = *e;
}

/* ---- Requests ---- */

void legacy_request(struct legacy *l, struct legacy_fx *fx, enum legacy_phase phase,
                    const struct etcd2_request *req)
{
    const struct legacy_effect e = { .kind = LEGACY_FX_REQUEST, .request = *req };

    assert(!l->requested);
    l->phase = phase;
    l->due_ms = MONO_NEVER;
    l->requested = true;
    l->polling = false;
    legacy_emit(fx, &e);
}

void legacy_get(struct legacy *l, struct legacy_fx *fx, enum legacy_phase phase)
{
    const struct etcd2_request req = { .key = span_str(l->active), .quorum = true };

    legacy_request(l, fx, phase, &req);
}

void legacy_swap(struct legacy *l, struct legacy_fx *fx, enum legacy_phase phase,
                 uint64_t ttl_s)
{
    struct etcd2_request req = { .verb = ETCD2_PUT,
                                 .key = span_str(l->active),
                                 .prev_value = buf_span(&l->text),
                                 .ttl_s = ttl_s };

    buf_clear(&l->put);
    legacy_no_memory(l, legacy_doc_print(&l->doc, &l->put));
    req.value = buf_span(&l->put);
    legacy_request(l, fx, phase, &req);
}

/* Past the deadline of a JOIN by a second at most, like torch. */
void legacy_wait(struct legacy *l, struct legacy_fx *fx, enum legacy_phase phase,
                 bool all, uint64_t most_ms)
{
    const uint64_t now = l->now.mono_ms;
    struct legacy_effect e = {
        .kind = LEGACY_FX_REQUEST,
        .request = { .key = span_str(all ? l->rdzv : l->active),
                     .wait = true,
                     .wait_index = l->index + 1,
                     .recursive = all },
        .timeout_ms = most_ms,
    };

    assert(!l->requested);
    if (l->joining)
        e.timeout_ms =
            MIN_OF(most_ms, (l->join_by_ms > now ? l->join_by_ms - now : 0) + 1000);
    l->phase = phase;
    l->due_ms = MONO_NEVER;
    l->requested = l->polling = true;
    legacy_emit(fx, &e);
}

void legacy_list(struct legacy *l, struct legacy_fx *fx, enum legacy_phase phase)
{
    struct etcd2_request req = { .quorum = true };

    buf_clear(&l->path);
    (void)buf_printf(&l->path, "%s/v_%" PRIu64, l->rdzv, l->version);
    req.key = buf_span(&l->path);
    legacy_request(l, fx, phase, &req);
}

/* ---- From phase to phase ---- */

void legacy_pause(struct legacy *l, enum legacy_phase phase, uint64_t ms)
{
    l->phase = phase;
    l->due_ms = l->now.mono_ms + ms;
}

void legacy_delay(struct legacy *l, enum legacy_phase phase)
{
    legacy_pause(l, phase, rng_below(&l->rng, 101));
}

void legacy_later(struct legacy *l, const char *why)
{
    assert(l->joining);
    (void)snprintf(l->reason, sizeof l->reason, "%s", why);
    log_line(l->log, LOG_INFO, AT_RENDEZVOUS,
             "Rendezvous attempt failed, will retry. Reason: %s", why);
    legacy_pause(l, LEGACY_PH_RETRY, RETRY_MS);
}

void legacy_refuse(struct legacy *l, struct legacy_fx *fx, int code, const char *text)
{
    const struct legacy_effect e = { .kind = LEGACY_FX_REFUSED,
                                     .code = code,
                                     .text = text };

    assert(l->joining && code < 0);
    l->joining = false;
    l->phase = LEGACY_PH_IDLE;
    l->due_ms = MONO_NEVER;
    legacy_emit(fx, &e);
}

void legacy_news(struct legacy_fx *fx, enum rdzv_news news, const char *text)
{
    const struct legacy_effect e = { .kind = LEGACY_FX_NEWS,
                                     .news = news,
                                     .text = text };

    legacy_emit(fx, &e);
}

/* A new attempt: the tree first, if nobody has made it; then a version of our own,
 * which tells if there is one already. */
void legacy_again(struct legacy *l, struct legacy_fx *fx)
{
    const struct legacy_effect drop = { .kind = LEGACY_FX_DROP };
    const struct etcd2_request tree = { .verb = ETCD2_PUT,
                                        .key = span_str(l->prefix),
                                        .dir = true,
                                        .prev_exist = ETCD2_MUST_NOT_EXIST };
    const struct etcd2_request create = { .verb = ETCD2_PUT,
                                          .key = span_str(l->active),
                                          .value = span_str("{\"status\": \"setup\"}"),
                                          .ttl_s = 5,
                                          .prev_exist = ETCD2_MUST_NOT_EXIST };

    assert(l->joining);
    if (l->now.mono_ms > l->join_by_ms) {
        if (!l->reason[0])
            (void)snprintf(l->reason, sizeof l->reason, "too few nodes came");
        legacy_refuse(l, fx, MUSTER_ETIMEDOUT, l->reason);
        return;
    }
    legacy_emit(fx, &drop);
    legacy_request(l, fx, l->made ? LEGACY_PH_CREATE : LEGACY_PH_MAKE_PREFIX,
                   l->made ? &create : &tree);
}

/* ---- Wishes ---- */

static void legacy_interrupt(struct legacy *l, struct legacy_fx *fx)
{
    const struct legacy_effect e = { .kind = LEGACY_FX_CANCEL };

    if (l->requested)
        legacy_emit(fx, &e);
    l->requested = false;
    l->phase = LEGACY_PH_IDLE;
    l->due_ms = MONO_NEVER;
}

static void legacy_on_join(struct legacy *l, struct legacy_fx *fx)
{
    const struct legacy_effect closing = { .kind = LEGACY_FX_REFUSED,
                                           .code = MUSTER_ECLOSED,
                                           .text = "the rendezvous is being closed" };

    if (l->close) { /* which goes on, and is answered */
        legacy_emit(fx, &closing);
        return;
    }
    legacy_interrupt(l, fx);
    l->joining = true;
    l->member = l->notified_lost = l->notified_closed = l->seen = false;
    l->waiting = l->notified_waiting = 0;
    l->reason[0] = '\0';
    l->join_by_ms = l->now.mono_ms + l->timeout_ms;
    legacy_again(l, fx);
}

static void legacy_on_leave(struct legacy *l, struct legacy_fx *fx)
{
    const struct legacy_effect drop = { .kind = LEGACY_FX_DROP };

    if (!l->close) /* which goes on: somebody waits for it, and no JOIN is under way */
        legacy_interrupt(l, fx);
    l->member = false;
    legacy_emit(fx, &drop);
    if (l->joining)
        legacy_refuse(l, fx, MUSTER_ECANCELED, "joining was canceled");
}

static void legacy_on_close(struct legacy *l, struct legacy_fx *fx)
{
    legacy_interrupt(l, fx);
    l->close = true;
    if (l->joining)
        legacy_refuse(l, fx, MUSTER_ECLOSED, "the rendezvous is being closed");
    legacy_get(l, fx, LEGACY_PH_CLOSE_GET);
}

/* ---- Step ---- */

void legacy_no_memory(struct legacy *l, int rc)
{
    l->no_memory |= rc < 0;
}

static void legacy_heard(struct legacy *l, const struct legacy_event *ev);

static void legacy_take(struct legacy *l, const struct legacy_event *ev,
                        struct legacy_fx *fx)
{
    switch (ev->kind) {
    case LEGACY_EV_JOIN:
        legacy_on_join(l, fx);
        return;
    case LEGACY_EV_LEAVE:
        legacy_on_leave(l, fx);
        return;
    case LEGACY_EV_CLOSE:
        legacy_on_close(l, fx);
        return;
    case LEGACY_EV_REPLY:
        assert(l->requested);
        l->requested = false;
        legacy_heard(l, ev);
        legacy_on_reply(l, fx);
        return;
    case LEGACY_EV_TIMER:
        if (l->due_ms > ev->now.mono_ms)
            return;
        l->due_ms = MONO_NEVER;
        legacy_on_timer(l, fx);
        return;
    }
}

/* What holds between two steps. */
static void legacy_check(const struct legacy *l)
{
    assert(!l->joining || !l->close);  /* A CLOSE refuses the JOIN under way, */
    assert(!l->joining || !l->member); /* and a member's JOIN ends its membership. */
    assert(!l->requested || l->due_ms == MONO_NEVER);
    assert(l->requested || l->due_ms != MONO_NEVER || l->phase == LEGACY_PH_IDLE);
    assert(l->requested || l->due_ms != MONO_NEVER || (!l->joining && !l->close));
}

int legacy_step(struct legacy *l, const struct legacy_event *ev, struct legacy_fx *fx)
{
    fx->count = 0;
    if (!l->no_memory) {
        l->ev = ev;
        l->now = ev->now;
        legacy_take(l, ev, fx);
        legacy_check(l);
        legacy_no_memory(l, buf_error(&l->text));
        legacy_no_memory(l, buf_error(&l->put));
        legacy_no_memory(l, buf_error(&l->path));
        legacy_no_memory(l, buf_error(&l->rank_path));
    }
    if (!l->no_memory)
        return 0;
    fx->count = 0;
    return MUSTER_ENOMEM;
}

uint64_t legacy_deadline(const struct legacy *l)
{
    return l->no_memory ? MONO_NEVER : l->due_ms;
}

int64_t legacy_waiting(const struct legacy *l)
{
    return l->waiting;
}

bool legacy_closed(const struct legacy *l)
{
    return l->closed;
}

/* ---- New and free ---- */

static bool legacy_make_paths(struct legacy *l, const struct legacy_config *cfg)
{
    const size_t n = strlen(cfg->prefix);

    l->prefix =
        mem_printf("%s%s", cfg->prefix, n && cfg->prefix[n - 1] == '/' ? "" : "/");
    if (!l->prefix)
        return false;
    l->run_id = mem_strdup(cfg->run_id);
    l->run = mem_printf("%srun_%s/", l->prefix, cfg->run_id);
    l->rdzv = mem_printf("%srun_%s/rdzv", l->prefix, cfg->run_id);
    l->active = mem_printf("%srun_%s/rdzv/active_version", l->prefix, cfg->run_id);
    l->counter = mem_printf("%srun_%s/rdzv/version_counter", l->prefix, cfg->run_id);
    return l->run_id && l->run && l->rdzv && l->active && l->counter;
}

int legacy_new(const struct legacy_config *cfg, struct legacy **out,
               struct muster_error *err)
{
    struct legacy *l;

    if (cfg->prefix[0] != '/')
        return err_set(
            err, MUSTER_EINVAL,
            "etcd_prefix '%s' must start with '/': etcd answers absolute keys, "
            "and torch, which compares them, would wait for ever. Use "
            "etcd_prefix=/%s on every node",
            cfg->prefix, cfg->prefix);
    if (!utf8_valid(span_str(cfg->prefix)) || !utf8_valid(span_str(cfg->run_id)))
        return err_set(err, MUSTER_EINVAL,
                       "the run id or etcd_prefix ('%s', '%s') is not UTF-8, but nodes "
                       "of this backend keep their keys as JSON. Give another "
                       "--rdzv-id, or use --rdzv-backend=etcd-v2 on every node",
                       cfg->run_id, cfg->prefix);
    l = mem_calloc(1, sizeof *l);
    if (!l || !legacy_make_paths(l, cfg)) {
        legacy_free(l);
        return err_nomem(err);
    }
    l->min_nodes = cfg->min_nodes;
    l->max_nodes = cfg->max_nodes;
    l->timeout_ms = cfg->timeout_ms;
    l->last_call_ms = cfg->last_call_ms;
    l->log = cfg->log;
    l->due_ms = l->call_since_ms = MONO_NEVER;
    rng_init(&l->rng, cfg->seed);
    buf_init(&l->text, SIZE_MAX);
    buf_init(&l->put, SIZE_MAX);
    buf_init(&l->path, SIZE_MAX);
    buf_init(&l->rank_path, SIZE_MAX);
    *out = l;
    return 0;
}

void legacy_free(struct legacy *l)
{
    if (!l)
        return;
    mem_free(l->prefix);
    mem_free(l->run_id);
    mem_free(l->run);
    mem_free(l->rdzv);
    mem_free(l->active);
    mem_free(l->counter);
    legacy_doc_fini(&l->doc);
    buf_fini(&l->text);
    buf_fini(&l->put);
    buf_fini(&l->path);
    buf_fini(&l->rank_path);
    mem_free(l);
}

/* ---- What a node can tell a person while it waits, from the document as it was last
 * read. Torch's document has no names. ---- */

/* Whether etcd is there. A long poll that ended without an event says nothing. */
static void legacy_heard(struct legacy *l, const struct legacy_event *ev)
{
    if (l->polling && ev->code == MUSTER_ETIMEDOUT)
        return;
    l->reached = ev->code == 0 || ev->code == MUSTER_ENOENT ||
                 ev->code == MUSTER_EEXIST || ev->code == MUSTER_ESTATE;
}

/* The node that holds the last call knows when it ends; the others know since when they
 * have seen enough nodes, which is as good for those who were there before. */
void legacy_seen(struct legacy *l)
{
    const bool called = l->doc.status == LEGACY_JOINABLE &&
                        (int64_t)l->doc.participants >= l->min_nodes;

    if (!called)
        l->call_since_ms = MONO_NEVER;
    else if (l->call_since_ms == MONO_NEVER || l->seen_version != l->doc.version)
        l->call_since_ms = l->now.mono_ms;
    l->seen = true;
    l->seen_version = l->doc.version;
}

/* From our place in the document to the end of its making; see LEGACY_PHASES. */
static bool has_place(const struct legacy *l)
{
    return l->phase >= LEGACY_PH_CALL_GET && l->phase <= LEGACY_PH_FINAL_WAIT;
}

static bool has_last_call(const struct legacy *l)
{
    return l->phase >= LEGACY_PH_CALL_GET && l->phase <= LEGACY_PH_CALL_DELAY;
}

static void legacy_gathering(const struct legacy *l, struct rdzv_progress *out)
{
    out->here = (int64_t)l->doc.participants;
    if (has_last_call(l))
        out->start_by_ms = l->call_by_ms;
    else if (l->call_since_ms != MONO_NEVER)
        out->start_by_ms = l->call_since_ms + l->last_call_ms;
}

bool legacy_progress(const struct legacy *l, struct rdzv_progress *out)
{
    if (!l->joining || (l->reached && !l->seen))
        return false;
    *out = (struct rdzv_progress){ .stage = RDZV_AT_ROUND,
                                   .min_nodes = l->min_nodes,
                                   .max_nodes = l->max_nodes,
                                   .by_ms = l->join_by_ms,
                                   .start_by_ms = MONO_NEVER };
    if (!l->reached || l->phase == LEGACY_PH_RETRY)
        progress_why(out, l->reason);
    if (!l->reached) {
        out->stage = RDZV_AT_STORE;
        return true;
    }
    switch (l->doc.status) {
    case LEGACY_SETUP:
    case LEGACY_CLOSED:
        break;
    case LEGACY_JOINABLE:
        legacy_gathering(l, out);
        break;
    case LEGACY_FROZEN: /* the members are settled; each has to confirm */
        if (has_place(l)) {
            out->min_nodes = out->max_nodes = (int64_t)l->doc.participants;
            out->here = (int64_t)l->doc.keep_alives;
            break;
        }
        out->stage = RDZV_AT_NEXT;
        break;
    case LEGACY_FINAL:
        out->stage = RDZV_AT_NEXT;
        break;
    }
    return true;
}
