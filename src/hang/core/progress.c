/* progress.c - see progress.h. */
#include "hang/core/progress.h"

#include <inttypes.h>
#include <jansson.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/py/json.h"

#define LOOKS_LEAST  3u   /* before anybody is called busy */
#define CPU_NOISE_US 2000 /* a signal, a page that was moved */
#define HELD_WAITS   2u   /* for a rank that is held once: stopped, and asleep again */
#define HELD_MOST    8u   /* readings in a row after which a rank that runs has moved */
#define LEAD_MS      1500u /* for the stacks of all ranks, before TIME is up */
#define RESUME_MS    300u  /* for a rank that was held to run on */

/* --- one node --------------------------------------------------------------------- */

int hang_node_init(struct hang_node *n, size_t ranks, uint64_t now_ms)
{
    *n = (struct hang_node){ .count = ranks };
    n->ranks = mem_calloc(ranks, sizeof *n->ranks);
    if (!n->ranks)
        return MUSTER_ENOMEM;
    hang_node_reset(n, now_ms);
    return 0;
}

void hang_node_fini(struct hang_node *n)
{
    mem_free(n->ranks);
    *n = (struct hang_node){ 0 };
}

void hang_node_reset(struct hang_node *n, uint64_t now_ms)
{
    for (size_t i = 0; i < n->count; i++)
        n->ranks[i] = (struct hang_rank){ .calm_ms = now_ms, .still_ms = now_ms };
    n->quiet_ms = now_ms;
}

void hang_node_wrote(struct hang_node *n, uint64_t now_ms, uint64_t age_ms)
{
    n->quiet_ms = MAX_OF(n->quiet_ms, now_ms - MIN_OF(age_ms, now_ms));
}

void hang_node_saw(struct hang_node *n, size_t local_rank, const struct hang_seen *s,
                   uint64_t now_ms)
{
    struct hang_rank *r = &n->ranks[local_rank];
    const bool known = s->pid == r->last.pid;
    const bool calm = known && s->waits == r->last.waits;

    if (known && s->bytes != r->last.bytes)
        hang_node_wrote(n, now_ms, 0);
    r->last.bytes = s->bytes;
    r->held = false;
    if (!calm)
        r->calm_ms = now_ms;
    if (!calm || s->cpu_us > r->last.cpu_us + CPU_NOISE_US) {
        r->still_ms = now_ms;
        r->last = *s;
    }
}

/* A reading that turned out to hold workers only at its end was counted once. Not all
 * readings that may hold a worker do: so that it cannot pass for one that stands still
 * while somebody looks at it all the time, the number is limited. */
bool hang_holds_saw(struct hang_holds *h, uint64_t changes, uint64_t running,
                    uint64_t now_ms)
{
    const uint64_t touched = (changes - h->changes + running + h->running + 1) / 2;
    const uint64_t times = h->held ? h->times + touched - h->running : touched;

    if (running > 0 || changes != h->changes)
        h->until_ms = now_ms + RESUME_MS;
    h->changes = changes;
    h->running = running;
    h->times = MIN_OF(times, HELD_MOST);
    h->held = now_ms < h->until_ms;
    return h->held;
}

void hang_node_held(struct hang_node *n, size_t local_rank, const struct hang_seen *s,
                    uint64_t times, uint64_t now_ms)
{
    struct hang_rank *r = &n->ranks[local_rank];
    const uint64_t ours = times * HELD_WAITS;

    if (s->pid != r->last.pid)
        return;
    if (!r->held)
        r->held_from = r->last.waits;
    r->held = true;
    if (s->waits > r->held_from + ours + 1) { /* One may be by chance. */
        r->calm_ms = r->still_ms = now_ms;
        r->held_from = s->waits - MIN_OF(ours, s->waits);
    }
    r->last = *s;
}

void hang_node_begin(struct hang_node *n)
{
    for (size_t i = 0; i < n->count; i++)
        n->ranks[i].looks = 0;
}

static void look_at(struct hang_rank *r, const struct stack_rank *seen)
{
    const uint64_t chain = stack_chain_hash(seen, true);
    const bool waits = stack_kind_of(seen) == STACK_WAITS || stack_in_torch(seen);

    if (r->looks++ == 0) {
        r->chain = chain;
        r->same = chain != 0;
        r->waited = r->waiting = waits;
        return;
    }
    r->same = r->same && chain == r->chain;
    r->waited = r->waited || waits;
    r->waiting = r->waiting && waits;
}

void hang_node_stacks(struct hang_node *n, const struct stack_sample *sample)
{
    for (size_t i = 0; i < sample->count; i++) {
        const int64_t local = sample->ranks[i].local_rank;

        if (local >= 0 && (uint64_t)local < n->count)
            look_at(&n->ranks[local], &sample->ranks[i]);
    }
}

bool hang_node_spins(const struct hang_node *n, uint64_t now_ms, uint64_t time_ms)
{
    for (size_t i = 0; i < n->count; i++) {
        const struct hang_rank *r = &n->ranks[i];

        if (r->last.pid != 0 && r->looks > 0 && r->waiting &&
            now_ms - r->still_ms < time_ms)
            return true;
    }
    return false;
}

void hang_node_pulse(const struct hang_node *n, uint64_t now_ms, uint64_t time_ms,
                     struct hang_pulse *out)
{
    *out = (struct hang_pulse){ .quiet_ms = now_ms - n->quiet_ms, .looks = UINT64_MAX };
    for (size_t i = 0; i < n->count; i++) {
        const struct hang_rank *r = &n->ranks[i];
        const uint64_t calm = now_ms - r->calm_ms;
        const bool still = now_ms - r->still_ms >= time_ms;

        if (r->last.pid == 0)
            continue;
        out->ranks++;
        out->looks = MIN_OF(out->looks, (uint64_t)r->looks);
        out->calm_ms = MAX_OF(out->calm_ms, calm);
        if (r->looks > 0 && r->waiting && calm >= time_ms && (still || r->same))
            out->waiting++;
        else if (still)
            out->still++;
        else if (r->looks >= LOOKS_LEAST && !r->waited)
            out->busy++;
        else
            out->moving++;
    }
    if (out->ranks == 0)
        out->looks = 0;
}

void hang_pulse_add(struct hang_pulse *to, const struct hang_pulse *from)
{
    if (from->ranks == 0)
        return; /* Nothing runs there, so it cannot be what the others wait for. */
    if (to->ranks == 0) {
        *to = *from;
        return;
    }
    to->quiet_ms = MIN_OF(to->quiet_ms, from->quiet_ms);
    to->calm_ms = MAX_OF(to->calm_ms, from->calm_ms);
    to->looks = MIN_OF(to->looks, from->looks);
    to->ranks += from->ranks;
    to->waiting += from->waiting;
    to->still += from->still;
    to->busy += from->busy;
    to->moving += from->moving;
}

/* --- on the wire ------------------------------------------------------------------ */

static const struct {
    const char *name;
    size_t offset;
} members[] = {
    { "quiet_ms", offsetof(struct hang_pulse, quiet_ms) },
    { "calm_ms", offsetof(struct hang_pulse, calm_ms) },
    { "ranks", offsetof(struct hang_pulse, ranks) },
    { "looks", offsetof(struct hang_pulse, looks) },
    { "waiting", offsetof(struct hang_pulse, waiting) },
    { "still", offsetof(struct hang_pulse, still) },
    { "busy", offsetof(struct hang_pulse, busy) },
    { "moving", offsetof(struct hang_pulse, moving) },
};

#define MOST                                                                           \
    ((uint64_t)1 << 40) /* of each: sums of many nodes stay far from overflow */

int hang_pulse_print(struct buf *out, const struct hang_pulse *p)
{
    for (size_t i = 0; i < ARRAY_LEN(members); i++) {
        uint64_t value;

        memcpy(&value, (const char *)p + members[i].offset, sizeof value);
        buf_printf(out, "%s\"%s\": %" PRIu64, i ? ", " : "{", members[i].name,
                   MIN_OF(value, MOST));
    }
    buf_u8(out, '}');
    return buf_error(out);
}

int hang_pulse_parse(struct hang_pulse *p, struct span text)
{
    struct hang_pulse got = { 0 };
    json_t *root = NULL;
    int rc = text.n > 4096 ? MUSTER_EPROTO : json_from_python(&root, text, NULL);

    if (rc != 0)
        return rc == MUSTER_ENOMEM ? rc : MUSTER_EPROTO;
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(members); i++) {
        const json_t *value = json_object_get(root, members[i].name);
        const json_int_t number =
            json_is_integer(value) ? json_integer_value(value) : -1;
        const uint64_t n = (uint64_t)number;

        if (number < 0 || n > MOST)
            rc = MUSTER_EPROTO;
        else
            memcpy((char *)&got + members[i].offset, &n, sizeof n);
    }
    json_decref(root);
    if (rc == 0 && got.waiting + got.still + got.busy + got.moving != got.ranks)
        rc = MUSTER_EPROTO;
    if (rc == 0)
        *p = got;
    return rc;
}

int hang_question_print(struct buf *out, const struct hang_question *q)
{
    buf_printf(out,
               "{\"time_ms\": %" PRIu64
               ", \"begin\": %s, \"stacks\": %s, \"enough\": %s}",
               q->time_ms, q->begin ? "true" : "false", q->stacks ? "true" : "false",
               q->enough ? "true" : "false");
    return buf_error(out);
}

int hang_question_parse(struct hang_question *q, struct span text)
{
    json_t *root = NULL;
    int rc = text.n > 4096 ? MUSTER_EPROTO : json_from_python(&root, text, NULL);

    if (rc != 0)
        return rc == MUSTER_ENOMEM ? rc : MUSTER_EPROTO;
    const json_t *time = json_object_get(root, "time_ms");
    if (!json_is_integer(time) || json_integer_value(time) <= 0)
        rc = MUSTER_EPROTO;
    else
        *q = (struct hang_question){
            .time_ms = (uint64_t)json_integer_value(time),
            .begin = json_is_true(json_object_get(root, "begin")),
            .stacks = json_is_true(json_object_get(root, "stacks")),
            .enough = json_is_true(json_object_get(root, "enough")),
        };
    json_decref(root);
    return rc;
}

/* --- the job ---------------------------------------------------------------------- */

static uint64_t judge_step(const struct hang_judge *j)
{
    return MAX_OF(j->time_ms / 20, (uint64_t)100);
}

static void judge_watch(struct hang_judge *j, uint64_t due_ms)
{
    j->stage = HANG_WATCH;
    j->begun = j->enough = false;
    j->due_ms = due_ms;
}

void hang_judge_init(struct hang_judge *j, uint64_t time_ms, uint64_t now_ms)
{
    *j = (struct hang_judge){ .time_ms = time_ms };
    judge_watch(j, now_ms + time_ms / 2);
}

/* For how long the job must have stood still. Reading the stacks of all ranks takes
 * about a second, so it begins that much earlier: once TIME is up they are there. */
static uint64_t needed(const struct hang_judge *j)
{
    return j->stage == HANG_SUSPECT ? j->time_ms
                                    : j->time_ms - MIN_OF(LEAD_MS, j->time_ms / 4);
}

struct hang_question hang_judge_ask(struct hang_judge *j)
{
    const bool look = j->stage == HANG_LOOK, suspect = j->stage == HANG_SUSPECT;
    const struct hang_question q = { .time_ms = needed(j),
                                     .begin = look && !j->begun,
                                     .stacks = look || suspect,
                                     .enough = suspect || j->enough };

    j->begun = look || suspect;
    return q;
}

/* For how long the job may have stood still, at the most. */
static uint64_t silence(const struct hang_pulse *all)
{
    return all->ranks == 0 ? 0 : MIN_OF(all->quiet_ms, all->calm_ms);
}

static bool stands_still(const struct hang_judge *j, const struct hang_pulse *all)
{
    if (silence(all) < needed(j) || all->looks < LOOKS_LEAST || all->moving > 0)
        return false;
    return all->busy == 0 || all->waiting > 0;
}

enum hang_finding hang_judge_hear(struct hang_judge *j, uint64_t now_ms,
                                  const struct hang_pulse *all, bool complete)
{
    const uint64_t half = j->time_ms / 2, so_far = silence(all);
    const bool reported = j->stage == HANG_REPORTED;

    if (!complete || all->ranks == 0) { /* A node is lost, or no node has begun. */
        if (!reported)
            judge_watch(j, now_ms + half);
        else
            j->due_ms = now_ms + half;
        return HANG_NOTHING;
    }
    if (so_far < half) {
        judge_watch(j, now_ms + MAX_OF(half - so_far, judge_step(j)));
        return reported ? HANG_OVER : HANG_NOTHING;
    }
    if (reported) {
        j->due_ms = now_ms + half;
        return HANG_NOTHING;
    }
    const uint64_t left = j->time_ms - MIN_OF(so_far, j->time_ms);
    if (stands_still(j, all)) {
        const bool found = j->stage == HANG_SUSPECT;

        j->stage = found ? HANG_REPORTED : HANG_SUSPECT;
        j->due_ms = now_ms + (found ? half : left);
        return found ? HANG_FOUND : HANG_SUSPECTED;
    }
    if (j->stage == HANG_SUSPECT && left > 0) {
        j->due_ms = now_ms + left; /* The answers came a little too early. */
        return HANG_NOTHING;
    }
    if (j->stage != HANG_LOOK) {
        j->stage = HANG_LOOK;
        j->begun = false;
        j->by_ms = now_ms + j->time_ms;
    } else if (now_ms >= j->by_ms && all->looks >= LOOKS_LEAST) {
        judge_watch(j, now_ms + half); /* Others go on: ask later. */
        return HANG_NOTHING;
    }
    j->due_ms = now_ms + judge_step(j);
    j->enough = false;
    if (so_far < needed(j) && so_far + judge_step(j) >= needed(j)) {
        j->due_ms = now_ms + (needed(j) - so_far);
        j->enough = all->looks >= LOOKS_LEAST;
    }
    return HANG_NOTHING;
}

void hang_judge_not_reported(struct hang_judge *j, uint64_t now_ms)
{
    j->stage = HANG_LOOK;
    j->by_ms = now_ms + j->time_ms;
    j->due_ms = now_ms + judge_step(j);
    j->enough = false;
}
