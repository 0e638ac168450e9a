/* findings.c - see findings.h. What is concluded from the stacks of all ranks, in the
 * order of this file:
 *
 *   1. frames: which say nothing (wrappers, how a script is run), which are torch's
 * waits for other ranks, where the native part below Python ends;
 *   2. one rank: its kind (waits, elsewhere, stopped, in the kernel, gone, not read)
 * and its place, a line of text; the processes that it started, if they explain it;
 *   3. groups: ranks of the same kind at the same place are told once, the odd ones
 * first;
 *   4. the verdict, from the kinds alone: who waits for whom. A rank counts as waited
 * for only if it is elsewhere while others wait; where ranks wait in different
 *      collectives, that is the finding; where stacks could not be read, nothing is
 *      claimed that they might refute;
 *   5. printing, for people and as JSON. */
#include "stacks/core/findings.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/py/json.h"

#define SHOWN_FRAMES  8u
#define SHOWN_NATIVE  4u
#define SHOWN_HELPERS 3u
#define SHOWN_WAITS   4u
#define RANGES_BYTES  60u /* longer lists of ranks are counted instead */
#define MISMATCH      "the ranks have called different collectives"
#define UNREAD        "the stacks of some ranks could not be read in full"

/* "elsewhere", "waits", ... */
static const char *stack_kind_name(enum stack_kind k)
{
    static const char *const names[] = {
        [STACK_ELSEWHERE] = "elsewhere", [STACK_WAITS] = "waits",
        [STACK_STOPPED] = "stopped",     [STACK_KERNEL] = "kernel",
        [STACK_GONE] = "gone",           [STACK_PARTLY] = "partly",
        [STACK_UNREAD] = "unread",
    };
    assert((size_t)k < ARRAY_LEN(names));
    return names[k];
}

/* --- frames ----------------------------------------------------------------------- */

static bool starts(const char *text, const char *begin)
{
    return strncmp(text, begin, strlen(begin)) == 0;
}

static bool ends(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);

    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Frames that say nothing: wrappers, and how a script is run. */
static bool is_noise(const struct stack_frame *f)
{
    static const char *const files[] = {
        "torch/distributed/c10d_logger.py",
        "torch/utils/_contextlib.py",
        "<frozen runpy>",
        "runpy.py",
        "<frozen importlib._bootstrap>",
        "<frozen importlib._bootstrap_external>",
    };
    static const char *const names[] = { "_call_impl", "_wrapped_call_impl",
                                         "decorate_context" };

    for (size_t i = 0; i < ARRAY_LEN(files); i++)
        if (ends(f->file, files[i]))
            return true;
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (strcmp(f->name, names[i]) == 0)
            return true;
    return false;
}

/* A function inside of the C library that has no name. Between a call and its system
 * call glibc 2.41 has two of them, which say nothing. */
static bool is_libc_inside(const struct stack_frame *f)
{
    return starts(f->name, "+0x") &&
           (starts(f->file, "libc.so") || starts(f->file, "libc-"));
}

static const struct stack_frame *innermost(const struct stack_thread *t)
{
    for (size_t i = 0; t && i < t->python_count; i++)
        if (!is_noise(&t->python[i]))
            return &t->python[i];
    return t && t->python_count > 0 ? &t->python[0] : NULL;
}

/* Where torch waits for other ranks. A rank that waits has its innermost frame there; a
 * rank that is in the model's own forward, called by DDP's, has not. */
static bool is_collective(const struct stack_frame *f)
{
    static const char *const files[] = {
        "torch/distributed/distributed_c10d.py",
        "torch/distributed/rendezvous.py",
        "torch/distributed/_functional_collectives.py",
        "torch/distributed/nn/functional.py",
        "torch/distributed/utils.py",
        "torch/nn/parallel/distributed.py",
        "torch/distributed/elastic/utils/store.py",
        "torch/distributed/_composable/fsdp/_fsdp_collectives.py",
        "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py",
    };

    for (size_t i = 0; i < ARRAY_LEN(files); i++)
        if (ends(f->file, files[i]))
            return true;
    return false;
}

static bool is_interpreter(const struct stack_frame *f)
{
    return starts(f->file, "libpython") || starts(f->file, "python") ||
           starts(f->name, "_PyEval_");
}

/* What runs below the innermost Python frame. */
static size_t native_count(const struct stack_thread *t)
{
    size_t n = 0;

    while (t && n < t->native_count && !is_interpreter(&t->native[n]))
        n++;
    return n;
}

static bool waits_natively(const struct stack_thread *t)
{
    static const char *const begins[] = {
        "c10d::Work::wait",
        "c10d::ProcessGroup",
        "c10d::Reducer",
        "c10d::TCPStore",
        "c10d::PrefixStore",
        "c10d::detail::",
        "gloo::",
        "nccl",
        "pncclGroup",
        "MPI_",
        "PMPI_",
    };
    const size_t count = native_count(t);

    for (size_t i = 0; i < count; i++) {
        const char *name = t->native[i].name;
        const char *inner = strstr(name, "c10d::"); /* behind a return type */

        for (size_t k = 0; k < ARRAY_LEN(begins); k++)
            if (starts(name, begins[k]) || (inner && starts(inner, begins[k])))
                return true;
    }
    return false;
}

/* A thread that waits for the lock sits in a timed wait that the interpreter itself has
 * called. */
const struct stack_thread *stack_gil_holder(const struct stack_process *p)
{
    const struct stack_thread *t = stack_main_thread(p);
    bool wants = false;

    if (!t || t->gil)
        return NULL;
    const size_t count = native_count(t);
    for (size_t i = 0; i < count; i++)
        wants = wants || starts(t->native[i].name, "pthread_cond_timedwait") ||
                starts(t->native[i].name, "__pthread_cond_timedwait");
    if (count < t->native_count && starts(t->native[count].name, "take_gil"))
        wants = true;
    for (size_t i = 1; wants && i < p->thread_count; i++)
        if (p->threads[i].gil)
            return &p->threads[i];
    return NULL;
}

/* --- one rank --------------------------------------------------------------------- */

enum stack_kind stack_kind_of(const struct stack_rank *r)
{
    const struct stack_process *p = &r->processes[0];
    const struct stack_thread *t = stack_main_thread(p);
    const struct stack_frame *f = innermost(t);

    assert(r->process_count > 0);
    if (p->state == 'T' || p->state == 't')
        return STACK_STOPPED;
    if (p->state == 'Z' || p->state == 'X')
        return STACK_GONE;
    if (p->state == 'D')
        return STACK_KERNEL;
    if (stack_gil_holder(p))
        return STACK_ELSEWHERE;
    if ((f && is_collective(f)) || waits_natively(t))
        return STACK_WAITS;
    return f || native_count(t) > 0 ? STACK_ELSEWHERE : STACK_UNREAD;
}

static bool is_torch(const char *file)
{
    return starts(file, "torch/") || strstr(file, "/torch/") != NULL;
}

bool stack_in_torch(const struct stack_rank *r)
{
    const struct stack_frame *f = innermost(stack_main_thread(&r->processes[0]));

    return f && is_torch(f->file);
}

static uint64_t mix(uint64_t hash, const char *text)
{
    for (; *text; text++)
        hash = (hash ^ (uint8_t)*text) * 0x100000001b3u;
    return (hash ^ 0xff) * 0x100000001b3u;
}

uint64_t stack_chain_hash(const struct stack_rank *r, bool lines)
{
    const struct stack_thread *t = stack_main_thread(&r->processes[0]);
    uint64_t hash = 0xcbf29ce484222325u;

    assert(r->process_count > 0);
    if (!t || t->python_count + t->native_count == 0)
        return 0;
    for (size_t i = 0; i < t->python_count; i++) {
        hash = mix(mix(hash, t->python[i].name), t->python[i].file);
        if (lines)
            hash = (hash ^ (uint64_t)t->python[i].line) * 0x100000001b3u;
    }
    if (t->python_count == 0)
        for (size_t i = 0; i < t->native_count; i++)
            hash = mix(mix(hash, t->native[i].name), t->native[i].file);
    return hash | 1;
}

static void put_frame(struct buf *out, const struct stack_frame *f)
{
    buf_printf(out, "%s (%s", f->name, f->file);
    if (f->line > 0)
        buf_printf(out, ":%" PRId64, f->line);
    buf_u8(out, ')');
}

static void put_frames(struct buf *out, const struct stack_frame *f, size_t count,
                       size_t most)
{
    size_t shown = 0, left = 0;

    for (size_t i = 0; i < count; i++) {
        const bool top = strcmp(f[i].name, "<module>") == 0;
        const bool last = i + 1 == count && shown == 0;

        if (is_noise(&f[i]) || (top && (shown > 0 || i + 1 < count)) ||
            (is_libc_inside(&f[i]) && !last))
            continue;
        if (shown == most) {
            left++;
            continue;
        }
        buf_append_str(out, shown++ ? " <- " : "");
        put_frame(out, &f[i]);
    }
    if (left > 0)
        buf_printf(out, " <- %zu more", left);
}

static void put_stack(struct buf *out, const struct stack_process *p)
{
    const struct stack_thread *t = stack_main_thread(p);
    const struct stack_thread *holder = stack_gil_holder(p);

    if (holder) {
        buf_printf(out, "wants the GIL, which thread %s holds in ",
                   *holder->name ? holder->name : "?");
        put_frames(out, holder->python, holder->python_count, SHOWN_FRAMES);
        if (native_count(holder) > 0) {
            buf_append_str(out, ", below Python: ");
            put_frames(out, holder->native, native_count(holder), SHOWN_NATIVE);
        }
    } else if (t && t->python_count > 0) {
        put_frames(out, t->python, t->python_count, SHOWN_FRAMES);
    } else if (t && t->native_count > 0) {
        put_frames(out, t->native, t->native_count, SHOWN_FRAMES);
    }
}

static bool has_frames(const struct stack_process *p)
{
    const struct stack_thread *t = stack_main_thread(p);

    return t && t->python_count + t->native_count > 0;
}

static void put_kernel(struct buf *out, const struct stack_process *p)
{
    if (*p->wchan)
        buf_printf(out, " in %s", p->wchan);
    if (*p->syscall)
        buf_printf(out, "%s%s", *p->wchan ? ", " : " in ", p->syscall);
}

static void put_place(struct buf *out, const struct stack_process *p,
                      enum stack_kind kind)
{
    switch (kind) {
    case STACK_STOPPED:
        buf_append_str(out, p->state == 't' ? "held by a debugger"
                                            : "stopped (SIGSTOP or the like)");
        break;
    case STACK_KERNEL:
        buf_append_str(out, "uninterruptible (state D)");
        put_kernel(out, p);
        break;
    case STACK_GONE:
        buf_append_str(out, "has exited");
        return;
    case STACK_UNREAD:
        buf_append_str(out, p->state == 'R' ? "runs" : "waits");
        put_kernel(out, p);
        buf_printf(out, "; no stack%s%s", *p->missing ? ": " : "", p->missing);
        return;
    case STACK_WAITS:
    case STACK_ELSEWHERE:
    case STACK_PARTLY:
    case STACK_KINDS:
        put_stack(out, p);
        return;
    }
    if (has_frames(p)) {
        buf_append_str(out, "; last frame ");
        put_stack(out, p);
    }
}

/* The user's own line: the innermost frame that is not torch's. */
static const struct stack_frame *own_frame(const struct stack_thread *t)
{
    for (size_t i = 0; i < t->python_count; i++)
        if (!is_noise(&t->python[i]) && !is_torch(t->python[i].file))
            return &t->python[i];
    return NULL;
}

/* For one line among others: "all_reduce (train.py:88)". */
static void put_brief(struct buf *out, const struct stack_process *p,
                      enum stack_kind kind)
{
    const struct stack_thread *t = stack_main_thread(p);
    const struct stack_frame *in = innermost(t);
    const struct stack_frame *own = t ? own_frame(t) : NULL;

    if (kind == STACK_WAITS && in && own) {
        buf_printf(out, "%s (%s:%" PRId64 ")", in->name, own->file, own->line);
        return;
    }
    put_place(out, p, kind);
}

/* A process of a DataLoader that has nothing to do: below its loop there is only the
 * queue from which it gets work. Then *loop is the loop's frame. */
static bool is_idle_loader(const struct stack_process *p, size_t *loop)
{
    const struct stack_thread *t = stack_main_thread(p);
    size_t i = 0;

    while (t && i < t->python_count &&
           (strstr(t->python[i].file, "multiprocessing/") ||
            ends(t->python[i].file, "selectors.py")))
        i++;
    *loop = i;
    return t && i < t->python_count && strcmp(t->python[i].name, "_worker_loop") == 0;
}

void stack_shorten_idle(struct stack_process *p)
{
    size_t loop;

    if (!is_idle_loader(p, &loop))
        return;
    p->threads[0].python += loop;
    p->threads[0].python_count = 1;
    p->thread_count = 1;
}

/* How much a process that a rank has started may explain. */
enum helper { HELPER_DULL, HELPER_IDLE, HELPER_BUSY, HELPER_ODD };

static enum helper helper_of(const struct stack_process *p)
{
    if (p->state == 'T' || p->state == 't' || p->state == 'Z' || p->state == 'D')
        return HELPER_ODD;
    size_t loop;
    if (!has_frames(p))
        return HELPER_DULL;
    return is_idle_loader(p, &loop) ? HELPER_IDLE : HELPER_BUSY;
}

static enum helper best_helper(const struct stack_rank *r)
{
    enum helper best = HELPER_DULL;

    for (size_t i = 1; i < r->process_count; i++)
        best = MAX_OF(best, helper_of(&r->processes[i]));
    return best;
}

/* First those that cannot go on, then others whose frames are known. Loaders that wait
 * for work are counted. */
static void put_helpers(struct buf *out, const struct stack_rank *r)
{
    size_t shown = 0, idle = 0;

    for (enum helper kind = HELPER_ODD; kind >= HELPER_BUSY; kind--)
        for (size_t i = 1; i < r->process_count && shown < SHOWN_HELPERS; i++) {
            const struct stack_process *p = &r->processes[i];

            if (helper_of(p) != kind)
                continue;
            const struct stack_rank alone = { .processes = (struct stack_process *)p,
                                              .process_count = 1 };
            buf_printf(out, "%sprocess %" PRId64 " (%s): ", shown++ ? "; " : "", p->pid,
                       p->command);
            put_place(out, p, stack_kind_of(&alone));
        }
    for (size_t i = 1; i < r->process_count; i++)
        idle += helper_of(&r->processes[i]) == HELPER_IDLE;
    if (idle > 0)
        buf_printf(out, "%s%zu DataLoader process%s for work", shown ? "; " : "", idle,
                   idle == 1 ? " waits" : "es wait");
}

/* --- groups ----------------------------------------------------------------------- */

struct seen {
    const struct stack_rank *rank;
    const char *place;
    enum stack_kind kind;
    bool whole; /* all was read that was read of other ranks */
};

/* If something of a rank was not read, for example for want of time, that was read of
 * another one, the two cannot be compared. Below a collective there is nothing that
 * would change what it is. */
static bool is_whole(const struct stack_rank *r, bool any_python, bool any_native)
{
    const struct stack_process *p = &r->processes[0];
    const struct stack_thread *t = stack_main_thread(p);
    const struct stack_frame *in = innermost(t);

    if (!*p->missing || (in && is_collective(in)))
        return true;
    return (!any_python || (t && t->python_count > 0)) &&
           (!any_native || (t && t->native_count > 0));
}

/* By what is known of Python, the whole ones first. */
static int by_chain(const void *a, const void *b)
{
    const struct seen *x = a, *y = b;
    const int c = strcmp(x->place, y->place);

    return c != 0 ? c : (int)y->whole - (int)x->whole;
}

/* Without native frames a rank is as good as another one that has the same Python
 * frames. If there is none, it is not known whether it waits for others. */
static void settle_partly(struct seen *seen, size_t count)
{
    qsort(seen, count, sizeof *seen, by_chain);
    for (size_t i = 0; i < count; i++) {
        if (seen[i].whole || seen[i].kind > STACK_WAITS)
            continue;
        if (i > 0 && seen[i - 1].whole &&
            strcmp(seen[i - 1].place, seen[i].place) == 0) {
            seen[i].kind = seen[i - 1].kind;
            seen[i].whole = true;
        } else if (seen[i].kind == STACK_ELSEWHERE) {
            seen[i].kind = STACK_PARTLY;
        }
    }
}

static int by_place(const void *a, const void *b)
{
    const struct seen *x = a, *y = b;

    if (x->kind != y->kind)
        return x->kind < y->kind ? -1 : 1;
    const int c = strcmp(x->place, y->place);
    if (c != 0)
        return c;
    if (x->whole != y->whole)
        return x->whole ? -1 : 1;
    return (x->rank->rank > y->rank->rank) - (x->rank->rank < y->rank->rank);
}

static const char *findings_keep(struct arena *a, struct buf *b)
{
    const int rc = buf_error(b);
    const char *text = rc == 0 ? arena_text(a, buf_span(b)) : NULL;

    buf_clear(b);
    return text;
}

static int look_at_all(struct stack_findings *f, const struct stack_sample *s,
                       struct seen *seen, struct buf *b)
{
    bool python = false, native = false;

    for (size_t i = 0; i < s->count; i++) {
        const struct stack_thread *t = stack_main_thread(&s->ranks[i].processes[0]);

        python = python || (t && t->python_count > 0);
        native = native || (t && t->native_count > 0);
    }
    for (size_t i = 0; i < s->count; i++) {
        const struct stack_process *p = &s->ranks[i].processes[0];

        seen[i].rank = &s->ranks[i];
        seen[i].kind = stack_kind_of(&s->ranks[i]);
        seen[i].whole =
            seen[i].kind != STACK_UNREAD &&
            (seen[i].kind > STACK_WAITS || is_whole(&s->ranks[i], python, native));
        put_place(b, p, seen[i].kind);
        seen[i].place = findings_keep(&f->arena, b);
        if (!seen[i].place)
            return MUSTER_ENOMEM;
    }
    if (s->count > 0) {
        settle_partly(seen, s->count);
        qsort(seen, s->count, sizeof *seen, by_place);
    }
    return 0;
}

static int fill_group(struct stack_findings *f, struct stack_group *g,
                      const struct seen *seen, size_t count, struct buf *b)
{
    const struct stack_process *p = &seen[0].rank->processes[0];
    const struct stack_thread *t = stack_main_thread(p);

    assert(count > 0);
    g->kind = seen[0].kind;
    g->whole = seen[0].whole;
    g->place = seen[0].place;
    put_brief(b, p, g->kind);
    g->brief = findings_keep(&f->arena, b);
    if (t && t->python_count > 0)
        put_frames(b, t->native, native_count(t), SHOWN_NATIVE);
    g->native = findings_keep(&f->arena, b);
    const struct stack_rank *tells = seen[0].rank;
    for (size_t i = 1; i < count; i++)
        if (best_helper(seen[i].rank) > best_helper(tells))
            tells = seen[i].rank;
    put_helpers(b, tells);
    g->helpers = findings_keep(&f->arena, b);
    g->ranks = arena_alloc(&f->arena, count, sizeof(struct stack_rank *));
    if (!g->brief || !g->native || !g->helpers || !g->ranks)
        return MUSTER_ENOMEM;
    for (size_t i = 0; i < count; i++)
        g->ranks[i] = seen[i].rank;
    g->count = count;
    return 0;
}

static bool same(const struct seen *a, const struct seen *b)
{
    return a->kind == b->kind && a->whole == b->whole &&
           strcmp(a->place, b->place) == 0;
}

static int group_all(struct stack_findings *f, const struct seen *seen, size_t count,
                     struct buf *b)
{
    size_t groups = 0;

    for (size_t i = 0; i < count; i++)
        groups += i == 0 || !same(&seen[i], &seen[i - 1]);
    f->groups = arena_alloc(&f->arena, groups, sizeof *f->groups);
    if (!f->groups)
        return MUSTER_ENOMEM;
    for (size_t i = 0; i < count;) {
        size_t n = 1;

        while (i + n < count && same(&seen[i], &seen[i + n]))
            n++;
        assert(f->count < groups && i + n <= count);
        if (fill_group(f, &f->groups[f->count], &seen[i], n, b) != 0)
            return MUSTER_ENOMEM;
        f->count++;
        i += n;
    }
    return 0;
}

/* --- the verdict ------------------------------------------------------------------ */

static void suspect_group(struct stack_findings *f, struct stack_group *g)
{
    g->suspect = true;
    f->suspects += g->count;
}

static void suspect(struct stack_findings *f, enum stack_kind kind)
{
    for (size_t i = 0; i < f->count; i++)
        if (f->groups[i].kind == kind)
            suspect_group(f, &f->groups[i]);
}

static struct stack_group *largest(const struct stack_findings *f)
{
    struct stack_group *most = NULL;

    for (size_t i = 0; i < f->count; i++)
        if (f->groups[i].whole && (!most || f->groups[i].count > most->count))
            most = &f->groups[i];
    return most;
}

/* No rank waits in a collective that we know. A few ranks that differ from the others
 * are named, but only if most ranks are in one place: 2 of 3, or three quarters. */
static void suspect_odd_ones(struct stack_findings *f)
{
    const struct stack_group *most = largest(f);

    assert(most && f->ranks > 0);
    const bool rule = f->ranks == 3 ? most->count == 2
                                    : f->ranks > 3 && most->count * 4 >= f->ranks * 3;
    if (f->count == 1) {
        f->unknown = "all ranks are in the same place";
        return;
    }
    if (!rule) {
        f->unknown = "no rank is seen to wait for others";
        return;
    }
    for (size_t i = 0; i < f->count; i++)
        if (&f->groups[i] != most)
            suspect_group(f, &f->groups[i]);
}

/* The collective that the ranks of a group wait in, "all_reduce", or NULL if it is not
 * one that all ranks have to call together: a rank that sends waits in another place
 * than the one that receives. */
static const char *collective_of(const struct stack_group *g)
{
    static const char *const pairs[] = {
        "send", "recv", "isend", "irecv", "batch_isend_irecv", "wait"
    };
    const struct stack_frame *in =
        innermost(stack_main_thread(&g->ranks[0]->processes[0]));

    if (!in || !is_collective(in))
        return NULL;
    for (size_t i = 0; i < ARRAY_LEN(pairs); i++)
        if (strcmp(in->name, pairs[i]) == 0)
            return NULL;
    return in->name;
}

static void put_ranks(struct buf *out, const struct stack_group *g)
{
    struct buf b;

    buf_init(&b, RANGES_BYTES);
    if (stack_ranges(&b, g) == 0) {
        buf_append_str(out, g->count == 1 ? "rank " : "ranks ");
        (void)buf_append_span(out, buf_span(&b));
    } else {
        buf_printf(out, "%zu ranks", g->count);
    }
    buf_fini(&b);
}

/* "ranks 0-2 wait in all_reduce (train.py:88), rank 3 in broadcast (train.py:95)" */
static const char *places_of_waits(struct stack_findings *f)
{
    const struct stack_group *most = largest(f);
    const char *text = NULL;
    size_t listed = 0;
    struct buf b;

    buf_init(&b, SIZE_MAX);
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < f->count; i++) {
            const struct stack_group *g = &f->groups[i];

            if ((g == most) != (round == 0) || listed == SHOWN_WAITS)
                continue;
            buf_append_str(&b, listed ? ", " : "");
            put_ranks(&b, g);
            buf_printf(&b, "%s in %s",
                       listed          ? ""
                       : g->count == 1 ? " waits"
                                       : " wait",
                       g->brief);
            listed++;
        }
    if (listed < f->count)
        buf_printf(&b, ", and %zu more places", f->count - listed);
    text = findings_keep(&f->arena, &b);
    buf_fini(&b);
    return text;
}

/* All ranks wait. Those that have called another collective than most others are the
 * likely cause; where no side is larger, the mismatch alone is told. */
static void judge_waits(struct stack_findings *f)
{
    const struct stack_group *most = largest(f);
    size_t agree = 0, known = 0;

    if (!most) {
        f->unknown = UNREAD;
        return;
    }
    if (f->count == 1) {
        f->unknown = "all ranks wait in the same place; a network or a device may be "
                     "the cause";
        return;
    }
    const char *usual = collective_of(most);
    for (size_t i = 0; i < f->count; i++) {
        const char *name = collective_of(&f->groups[i]);

        known += name != NULL;
        if (usual && name && strcmp(name, usual) == 0)
            agree += f->groups[i].count;
    }
    f->places = places_of_waits(f);
    if (known < f->count || agree == f->ranks) {
        f->unknown = "ranks wait in different places";
        return;
    }
    f->mismatch = true;
    if (agree * 2 <= f->ranks) {
        f->unknown = MISMATCH;
        return;
    }
    for (size_t i = 0; i < f->count; i++)
        if (strcmp(collective_of(&f->groups[i]), usual) != 0)
            suspect_group(f, &f->groups[i]);
}

static void findings_judge(struct stack_findings *f)
{
    size_t n[STACK_KINDS] = { 0 };

    for (size_t i = 0; i < f->count; i++)
        n[f->groups[i].kind] += f->groups[i].count;
    n[STACK_UNREAD] += n[STACK_PARTLY];
    f->unknown = "";
    if (f->ranks == 0)
        f->unknown = "no rank was seen";
    else if (n[STACK_STOPPED] == f->ranks)
        f->unknown = "every rank is stopped";
    else if (n[STACK_STOPPED] > 0)
        suspect(f, STACK_STOPPED);
    else if (n[STACK_GONE] > 0 && n[STACK_GONE] + n[STACK_WAITS] == f->ranks)
        suspect(f, STACK_GONE);
    else if (n[STACK_KERNEL] == f->ranks)
        f->unknown = "every rank is in the kernel";
    else if (n[STACK_KERNEL] > 0 && n[STACK_KERNEL] * 2 <= f->ranks)
        suspect(f, STACK_KERNEL);
    else if (n[STACK_KERNEL] > 0)
        f->unknown = "most ranks are in the kernel";
    else if (n[STACK_UNREAD] == f->ranks)
        f->unknown = "no stack could be read";
    else if (n[STACK_WAITS] == 0 && n[STACK_UNREAD] == 0)
        suspect_odd_ones(f);
    else if (n[STACK_ELSEWHERE] > 0 && n[STACK_WAITS] > 0 &&
             n[STACK_ELSEWHERE] * 2 <= f->ranks)
        suspect(f, STACK_ELSEWHERE);
    else if (n[STACK_ELSEWHERE] > 0 && n[STACK_ELSEWHERE] * 2 > f->ranks)
        f->unknown = "most ranks are in no collective";
    else if (n[STACK_UNREAD] > 0)
        f->unknown = UNREAD;
    else
        judge_waits(f);
}

/* Suspects first, then others that differ, the rarer ones first; those who wait after
 * others. */
static int by_oddity(const void *a, const void *b)
{
    const struct stack_group *x = a, *y = b;

    if (x->suspect != y->suspect)
        return x->suspect ? -1 : 1;
    if (x->differs != y->differs)
        return x->differs ? -1 : 1;
    if (x->count != y->count)
        return x->count < y->count ? -1 : 1;
    if ((x->kind == STACK_WAITS) != (y->kind == STACK_WAITS))
        return x->kind == STACK_WAITS ? 1 : -1;
    return (x->ranks[0]->rank > y->ranks[0]->rank) -
           (x->ranks[0]->rank < y->ranks[0]->rank);
}

static void mark(struct stack_findings *f)
{
    const struct stack_group *most = largest(f);

    assert(f->suspects <= f->ranks);
    for (size_t i = 0; i < f->count; i++) {
        struct stack_group *g = &f->groups[i];

        assert(!g->suspect || g->whole);
        g->differs = g->suspect || (g->whole && g->count < most->count);
    }
    if (f->count > 1)
        qsort(f->groups, f->count, sizeof *f->groups, by_oddity);
}

int stack_findings_make(struct stack_findings *f, const struct stack_sample *s)
{
    struct buf b;
    int rc;

    *f = (struct stack_findings){ .ranks = s->count, .places = "" };
    struct seen *seen = arena_alloc(&f->arena, s->count, sizeof *seen);
    buf_init(&b, SIZE_MAX);
    rc = seen ? look_at_all(f, s, seen, &b) : MUSTER_ENOMEM;
    if (rc == 0)
        rc = group_all(f, seen, s->count, &b);
    buf_fini(&b);
    if (rc != 0) {
        stack_findings_fini(f);
        return rc;
    }
    findings_judge(f);
    mark(f);
    if (!f->places) {
        stack_findings_fini(f);
        return MUSTER_ENOMEM;
    }
    return 0;
}

void stack_findings_fini(struct stack_findings *f)
{
    arena_fini(&f->arena);
    *f = (struct stack_findings){ 0 };
}

/* --- as text ---------------------------------------------------------------------- */

int stack_ranges(struct buf *out, const struct stack_group *g)
{
    for (size_t i = 0; i < g->count;) {
        size_t n = 1;

        while (i + n < g->count &&
               g->ranks[i + n]->rank == g->ranks[i]->rank + (int64_t)n)
            n++;
        if (n == 2)
            n = 1; /* "6, 7" reads better than "6-7" */
        buf_printf(out, "%s%" PRId64, i ? ", " : "", g->ranks[i]->rank);
        if (n > 1)
            buf_printf(out, "-%" PRId64, g->ranks[i + n - 1]->rank);
        i += n;
    }
    return buf_error(out);
}

/* The node, if the ranks are all of one. */
static const char *node_of(const struct stack_group *g)
{
    assert(g->count > 0);
    for (size_t i = 1; i < g->count; i++)
        if (strcmp(g->ranks[i]->node, g->ranks[0]->node) != 0)
            return "";
    return g->ranks[0]->node;
}

/* How a group's line ends. */
static void put_end(struct buf *out, const struct stack_group *g)
{
    if (g->kind == STACK_PARTLY)
        buf_printf(out, " (not all of it was read: %s)",
                   g->ranks[0]->processes[0].missing);
    buf_append_str(out, g->differs ? "   <-- differs\n" : "\n");
}

/* A rank that is in C code and keeps the interpreter's lock stops all its threads: what
 * tells then is the native frame. */
static void put_native(struct buf *out, const struct stack_group *g, const char *indent)
{
    const struct stack_thread *t = stack_main_thread(&g->ranks[0]->processes[0]);

    buf_printf(out, "%sbelow Python%s: %s\n", indent,
               t && t->gil ? ", with the GIL held" : "", g->native);
}

int stack_findings_print(struct buf *out, const struct stack_findings *f,
                         const struct stack_sample *s)
{
    for (size_t i = 0; i < f->count; i++) {
        const struct stack_group *g = &f->groups[i];
        const char *node = g->differs || f->count == 1 ? node_of(g) : "";

        buf_printf(out, "%zu %s (", g->count, g->count == 1 ? "rank " : "ranks");
        stack_ranges(out, g);
        buf_printf(out, "%s%s): %s", *node ? ", " : "", node, g->place);
        put_end(out, g);
        if (*g->native)
            put_native(out, g, "        ");
        if (*g->helpers)
            buf_printf(out, "        %s\n", g->helpers);
    }
    if (f->mismatch)
        buf_printf(out, "note: " MISMATCH ": %s\n", f->places);
    for (size_t i = 0; i < s->note_count; i++)
        buf_printf(out, "note: %s\n", s->notes[i]);
    return buf_error(out);
}

static void report_group(struct buf *out, const struct stack_group *g,
                         const char *indent)
{
    const char *node = node_of(g);
    const bool one = g->count == 1;

    buf_append_str(out, indent);
    if (one)
        buf_printf(out, "rank %" PRId64, g->ranks[0]->rank);
    else {
        buf_printf(out, "%zu ranks (", g->count);
        stack_ranges(out, g);
        buf_u8(out, ')');
    }
    if (one && *node)
        buf_printf(out, " on %s", node);
    if (g->kind == STACK_WAITS)
        buf_printf(out, " %s in %s", one ? "waits" : "wait", g->brief);
    else if ((g->kind == STACK_ELSEWHERE || g->kind == STACK_PARTLY) &&
             !starts(g->place, "wants "))
        buf_printf(out, " %s in %s", one ? "is" : "are", g->place);
    else if (g->kind == STACK_STOPPED || g->kind == STACK_KERNEL)
        buf_printf(out, " %s %s", one ? "is" : "are", g->place);
    else
        buf_printf(out, ": %s", g->place);
    put_end(out, g);
    if (g->suspect && *g->native) {
        buf_append_str(out, "  ");
        put_native(out, g, indent);
    }
    if (g->kind != STACK_WAITS && *g->helpers)
        buf_printf(out, "%s  its %s\n", indent, g->helpers);
}

int stack_findings_report(struct buf *out, const struct stack_findings *f,
                          const char *indent)
{
    for (size_t i = f->count; i-- > 0;)
        report_group(out, &f->groups[i], indent);
    return buf_error(out);
}

int stack_findings_verdict(struct buf *out, const struct stack_findings *f)
{
    size_t listed = 0;

    if (f->suspects == 0) {
        buf_printf(out, "the likely cause is unknown: %s%s%s", f->unknown,
                   *f->places ? ": " : "", f->places);
        return buf_error(out);
    }
    buf_append_str(out, f->suspects == 1 ? "rank " : "ranks ");
    for (size_t i = 0; i < f->count; i++) {
        if (!f->groups[i].suspect)
            continue;
        buf_append_str(out, listed++ ? ", " : "");
        stack_ranges(out, &f->groups[i]);
    }
    assert(listed > 0);
    buf_append_str(out,
                   f->suspects == 1 ? " is the likely cause" : " are the likely cause");
    if (f->mismatch)
        buf_printf(out, ": " MISMATCH ": %s", f->places);
    return buf_error(out);
}

static void list_frames(struct buf *out, const struct stack_frame *f, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        buf_append_str(out, "      ");
        put_frame(out, &f[i]);
        buf_u8(out, '\n');
    }
}

static void list_process(struct buf *out, const struct stack_process *p)
{
    buf_printf(out, "  process %" PRId64 " (%s), state %c", p->pid, p->command,
               p->state ? p->state : '?');
    put_kernel(out, p);
    buf_u8(out, '\n');
    if (*p->missing)
        buf_printf(out, "    not read: %s\n", p->missing);
    for (size_t i = 0; i < p->thread_count; i++) {
        const struct stack_thread *t = &p->threads[i];

        buf_printf(out, "    thread %" PRId64 " %s%s\n", t->id, t->name,
                   t->gil ? " (holds the GIL)" : "");
        list_frames(out, t->native, t->native_count);
        list_frames(out, t->python, t->python_count);
    }
}

int stack_rank_print(struct buf *out, const struct stack_rank *r)
{
    buf_printf(out, "rank %" PRId64 " on %s (local rank %" PRId64 ")\n", r->rank,
               r->node, r->local_rank);
    for (size_t i = 0; i < r->process_count; i++)
        list_process(out, &r->processes[i]);
    return buf_error(out);
}

static void json_member(struct buf *out, const char *key, const char *text)
{
    buf_printf(out, ", \"%s\": ", key);
    json_text(out, text);
}

static void json_group(struct buf *out, const struct stack_group *g)
{
    buf_append_str(out, "{\"ranks\": [");
    for (size_t i = 0; i < g->count; i++)
        buf_printf(out, "%s%" PRId64, i ? ", " : "", g->ranks[i]->rank);
    buf_printf(out, "], \"kind\": \"%s\"", stack_kind_name(g->kind));
    json_member(out, "node", node_of(g));
    json_member(out, "place", g->place);
    json_member(out, "native", g->native);
    json_member(out, "helpers", g->helpers);
    buf_printf(out, ", \"differs\": %s, \"suspect\": %s}",
               g->differs ? "true" : "false", g->suspect ? "true" : "false");
}

int stack_findings_json(struct buf *out, const struct stack_findings *f)
{
    struct buf verdict;

    buf_append_str(out, "\"groups\": [");
    for (size_t i = 0; i < f->count; i++) {
        buf_append_str(out, i ? ", " : "");
        json_group(out, &f->groups[i]);
    }
    buf_append_str(out, "], \"suspects\": [");
    for (size_t i = 0, listed = 0; i < f->count; i++)
        for (size_t k = 0; f->groups[i].suspect && k < f->groups[i].count; k++)
            buf_printf(out, "%s%" PRId64, listed++ ? ", " : "",
                       f->groups[i].ranks[k]->rank);
    buf_init(&verdict, SIZE_MAX);
    stack_findings_verdict(&verdict, f);
    buf_u8(&verdict, 0);
    if (buf_error(&verdict))
        buf_fail(out, buf_error(&verdict));
    else {
        buf_append_str(out, "], \"verdict\": ");
        json_text(out, (const char *)buf_data(&verdict));
    }
    buf_fini(&verdict);
    return buf_error(out);
}
