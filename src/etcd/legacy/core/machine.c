/* machine.c - see machine.h: events, effects, and going from phase to phase. What
 * follows which answer is in machine_phases.c. */
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

int legacy_request(struct legacy *l, struct legacy_fx *fx, enum legacy_phase phase,
                   const struct etcd2_request *req)
{
    const struct legacy_effect e = { .kind = LEGACY_FX_REQUEST, .request = *req };

    assert(!l->requested);
    l->phase = phase;
    l->due_ms = MONO_NEVER;
    l->requested = true;
    l->polling = false;
    legacy_emit(fx, &e);
    return 0;
}

int legacy_get(struct legacy *l, struct legacy_fx *fx, enum legacy_phase phase)
{
    const struct etcd2_request req = { .key = span_str(l->active), .quorum = true };

    return legacy_request(l, fx, phase, &req);
}

int legacy_swap(struct legacy *l, struct legacy_fx *fx, enum legacy_phase phase,
                uint64_t ttl_s)
{
    struct etcd2_request req = { .verb = ETCD2_PUT,
                                 .key = span_str(l->active),
                                 .prev_value = buf_span(&l->text),
                                 .ttl_s = ttl_s };

    assert(l->doc.root && buf_len(&l->text) > 0);
    buf_clear(&l->put);
    if (legacy_doc_print(&l->doc, &l->put) < 0)
        return MUSTER_ENOMEM;
    req.value = buf_span(&l->put);
    return legacy_request(l, fx, phase, &req);
}

/* Past the deadline of a JOIN by a second at most, like torch. */
int legacy_wait(struct legacy *l, struct legacy_fx *fx, enum legacy_phase phase,
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
    return 0;
}

int legacy_list(struct legacy *l, struct legacy_fx *fx, enum legacy_phase phase)
{
    struct etcd2_request req = { .quorum = true };

    buf_clear(&l->path);
    if (buf_printf(&l->path, "%s/v_%" PRIu64, l->rdzv, l->version) < 0)
        return MUSTER_ENOMEM;
    req.key = buf_span(&l->path);
    return legacy_request(l, fx, phase, &req);
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
    trace(l->trace, TRACE_INFO, "Rendezvous attempt failed, will retry. Reason: %s",
          why);
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

void legacy_news(struct legacy *l, struct legacy_fx *fx, enum rdzv_news news,
                 const char *text)
{
    const struct legacy_effect e = { .kind = LEGACY_FX_NEWS,
                                     .news = news,
                                     .text = text };

    (void)l;
    legacy_emit(fx, &e);
}

/* A new attempt: the tree first, if nobody has made it; then a version of our own,
 * which tells if there is one already. */
int legacy_again(struct legacy *l, struct legacy_fx *fx)
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
        return 0;
    }
    legacy_emit(fx, &drop);
    return legacy_request(l, fx, l->made ? LEGACY_PH_CREATE : LEGACY_PH_MAKE_PREFIX,
                          l->made ? &create : &tree);
}

/* ---- Wishes ---- */

static void interrupt(struct legacy *l, struct legacy_fx *fx)
{
    const struct legacy_effect e = { .kind = LEGACY_FX_CANCEL };

    if (l->requested)
        legacy_emit(fx, &e);
    l->requested = false;
    l->phase = LEGACY_PH_IDLE;
    l->due_ms = MONO_NEVER;
}

static int on_join(struct legacy *l, struct legacy_fx *fx)
{
    const struct legacy_effect closing = { .kind = LEGACY_FX_REFUSED,
                                           .code = MUSTER_ECLOSED,
                                           .text = "the rendezvous is being closed" };

    if (l->close) { /* which goes on, and is answered */
        legacy_emit(fx, &closing);
        return 0;
    }
    interrupt(l, fx);
    l->joining = true;
    l->member = l->notified_lost = l->notified_closed = l->seen = false;
    l->waiting = l->notified_waiting = 0;
    l->reason[0] = '\0';
    l->join_by_ms = l->now.mono_ms + l->timeout_ms;
    return legacy_again(l, fx);
}

static void on_leave(struct legacy *l, struct legacy_fx *fx)
{
    const struct legacy_effect drop = { .kind = LEGACY_FX_DROP };

    if (!l->close) /* which goes on: somebody waits for it, and no JOIN is under way */
        interrupt(l, fx);
    l->member = false;
    legacy_emit(fx, &drop);
    if (l->joining)
        legacy_refuse(l, fx, MUSTER_ECANCELED, "joining was canceled");
}

static int on_close(struct legacy *l, struct legacy_fx *fx)
{
    interrupt(l, fx);
    l->close = true;
    if (l->joining)
        legacy_refuse(l, fx, MUSTER_ECLOSED, "the rendezvous is being closed");
    return legacy_get(l, fx, LEGACY_PH_CLOSE_GET);
}

/* ---- Step ---- */

/* What a step changes and has memory of its own. */
static void fini_parts(struct legacy *l)
{
    legacy_doc_fini(&l->doc);
    buf_fini(&l->text);
    buf_fini(&l->put);
    buf_fini(&l->path);
    buf_fini(&l->rank_path);
}

static int copy_buf(struct buf *to, const struct buf *from)
{
    buf_init(to, SIZE_MAX);
    return buf_append_span(to, buf_span(from));
}

static int copy_parts(struct legacy *to, const struct legacy *from)
{
    to->doc.root = from->doc.root ? json_deep_copy(from->doc.root) : NULL;
    int rc = from->doc.root && !to->doc.root ? MUSTER_ENOMEM : 0;

    /* All of them, so that fini_parts() finds none that is another's. */
    rc = copy_buf(&to->text, &from->text) < 0 ? MUSTER_ENOMEM : rc;
    rc = copy_buf(&to->put, &from->put) < 0 ? MUSTER_ENOMEM : rc;
    rc = copy_buf(&to->path, &from->path) < 0 ? MUSTER_ENOMEM : rc;
    rc = copy_buf(&to->rank_path, &from->rank_path) < 0 ? MUSTER_ENOMEM : rc;
    if (rc < 0)
        fini_parts(to);
    return rc;
}

static void legacy_heard(struct legacy *l, const struct legacy_event *ev);

static int on_reply(struct legacy *l, const struct legacy_event *ev,
                    struct legacy_fx *fx)
{
    assert(l->requested);
    l->requested = false;
    legacy_heard(l, ev);
    return legacy_on_reply(l, ev, fx);
}

/* An answer with something in it is all that needs memory, here and there on its way:
 * if there is none, the machine becomes what it was before. */
static int on_answer(struct legacy *l, const struct legacy_event *ev,
                     struct legacy_fx *fx)
{
    struct legacy was = *l;
    int rc = copy_parts(&was, l);

    if (rc < 0)
        return rc;
    l->now = ev->now;
    rc = on_reply(l, ev, fx);
    if (rc < 0) {
        fini_parts(l);
        *l = was;
        fx->count = 0;
    } else {
        fini_parts(&was);
    }
    return rc;
}

static int take(struct legacy *l, const struct legacy_event *ev, struct legacy_fx *fx)
{
    switch (ev->kind) {
    case LEGACY_EV_JOIN:
        return on_join(l, fx);
    case LEGACY_EV_LEAVE:
        on_leave(l, fx);
        return 0;
    case LEGACY_EV_CLOSE:
        return on_close(l, fx);
    case LEGACY_EV_REPLY:
        return on_reply(l, ev, fx);
    case LEGACY_EV_TIMER:
        if (l->due_ms > ev->now.mono_ms)
            return 0;
        l->due_ms = MONO_NEVER;
        return legacy_on_timer(l, fx);
    }
    return 0;
}

/* What holds between two steps. */
static void check(const struct legacy *l)
{
    assert(!l->joining || !l->close);  /* A CLOSE refuses the JOIN under way, */
    assert(!l->joining || !l->member); /* and a member's JOIN ends its membership. */
    assert(!l->requested || l->due_ms == MONO_NEVER);
    assert(l->requested || l->due_ms != MONO_NEVER || l->phase == LEGACY_PH_IDLE);
    assert(l->requested || l->due_ms != MONO_NEVER || (!l->joining && !l->close));
}

int legacy_step(struct legacy *l, const struct legacy_event *ev, struct legacy_fx *fx)
{
    int rc;

    fx->count = 0;
    if (ev->kind == LEGACY_EV_REPLY && ev->code == 0) {
        rc = on_answer(l, ev, fx);
    } else {
        l->now = ev->now;
        rc = take(l, ev, fx);
        assert(rc == 0);
    }
    check(l);
    return rc;
}

uint64_t legacy_deadline(const struct legacy *l)
{
    return l->due_ms;
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

static bool make_paths(struct legacy *l, const struct legacy_config *cfg)
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
    if (!l || !make_paths(l, cfg)) {
        legacy_free(l);
        return err_nomem(err);
    }
    l->min_nodes = cfg->min_nodes;
    l->max_nodes = cfg->max_nodes;
    l->timeout_ms = cfg->timeout_ms;
    l->last_call_ms = cfg->last_call_ms;
    l->trace = cfg->trace;
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
    fini_parts(l);
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

static void gathering(const struct legacy *l, struct rdzv_progress *out)
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
        gathering(l, out);
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
