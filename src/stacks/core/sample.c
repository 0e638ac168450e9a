/* sample.c - see sample.h. Parsing trusts nobody: the text comes from another node. */
#include "stacks/core/sample.h"

#include <assert.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/escape.h"
#include "base/mem.h"
#include "base/py/json.h"

void stack_sample_fini(struct stack_sample *s)
{
    arena_fini(&s->arena);
    mem_free(s->ranks);
    *s = (struct stack_sample){ 0 };
}

struct stack_rank *stack_sample_add(struct stack_sample *s, size_t processes)
{
    struct stack_rank *r = mem_grow_to(s->ranks, &s->size, s->count, sizeof *r);
    struct stack_process *p = arena_alloc(&s->arena, processes, sizeof *p);

    if (r)
        s->ranks = r;
    if (!r || !p)
        return NULL;
    r += s->count++;
    for (size_t i = 0; i < processes; i++)
        p[i].command = p[i].wchan = p[i].syscall = p[i].missing = "";
    *r = (struct stack_rank){ .node = "", .processes = p, .process_count = processes };
    return r;
}

/* A copy that is safe to print: names of nodes, files and functions come from other
 * machines. */
static const char *clean_text(struct arena *a, struct span text)
{
    const char *copy;
    struct buf b;

    buf_init(&b, SIZE_MAX);
    copy = escape_append(&b, text, 0) == 0 ? arena_text(a, buf_span(&b)) : NULL;
    buf_fini(&b);
    return copy;
}

int stack_sample_note(struct stack_sample *s, const char *text)
{
    for (size_t i = 0; i < s->note_count; i++)
        if (strcmp(s->notes[i], text) == 0)
            return 0;
    if (s->note_count == STACK_NOTES_MAX)
        return 0;
    const char *copy = clean_text(&s->arena, span_str(text));
    if (!copy)
        return MUSTER_ENOMEM;
    s->notes[s->note_count++] = copy;
    return 0;
}

static int by_rank(const void *a, const void *b)
{
    const struct stack_rank *x = a, *y = b;

    return (x->rank > y->rank) - (x->rank < y->rank);
}

void stack_sample_sort(struct stack_sample *s)
{
    if (s->count > 1)
        qsort(s->ranks, s->count, sizeof *s->ranks, by_rank);
}

const struct stack_thread *stack_main_thread(const struct stack_process *p)
{
    return p->thread_count > 0 ? &p->threads[0] : NULL;
}

/* --- out -------------------------------------------------------------------------- */

static void put_member(struct buf *out, const char *key, const char *text)
{
    if (!*text)
        return;
    buf_printf(out, ", \"%s\": ", key);
    json_text(out, text);
}

static void put_frames(struct buf *out, const char *key, const struct stack_frame *f,
                       size_t count)
{
    if (count == 0)
        return;
    buf_printf(out, ", \"%s\": [", key);
    for (size_t i = 0; i < count; i++) {
        buf_append_str(out, i ? ", [" : "[");
        json_text(out, f[i].name);
        buf_append_str(out, ", ");
        json_text(out, f[i].file);
        if (f[i].line > 0)
            buf_printf(out, ", %" PRId64, f[i].line);
        buf_u8(out, ']');
    }
    buf_u8(out, ']');
}

/* How much is left out. */
struct cut {
    size_t processes, threads, python, native;
};

static const struct cut cuts[] = {
    { STACK_PROCESSES_MAX, STACK_THREADS_MAX, STACK_FRAMES_MAX, STACK_FRAMES_MAX },
    { STACK_PROCESSES_MAX, 1, 24, 8 },
    { 9, 1, 16, 8 },
    { 1, 1, 16, 8 },
    { 1, 1, 4, 2 },
    { 1, 0, 0, 0 },
};

static void put_thread(struct buf *out, const struct stack_thread *t,
                       const struct cut *cut)
{
    buf_printf(out, "{\"id\": %" PRId64, t->id);
    put_member(out, "name", t->name);
    buf_append_str(out, t->gil ? ", \"gil\": true" : "");
    put_frames(out, "python", t->python, MIN_OF(t->python_count, cut->python));
    put_frames(out, "native", t->native, MIN_OF(t->native_count, cut->native));
    buf_u8(out, '}');
}

static void put_process(struct buf *out, const struct stack_process *p,
                        const struct cut *cut)
{
    const char state[] = { p->state, '\0' };

    buf_printf(out, "{\"pid\": %" PRId64 ", \"parent\": %" PRId64, p->pid, p->parent);
    put_member(out, "state", state);
    put_member(out, "command", p->command);
    put_member(out, "wchan", p->wchan);
    put_member(out, "syscall", p->syscall);
    buf_printf(out, ", \"switches\": %" PRIu64 ", \"cpu_ms\": %" PRIu64, p->switches,
               p->cpu_ms);
    put_member(out, "missing", p->missing);
    buf_append_str(out, ", \"threads\": [");
    for (size_t i = 0; cut->threads > 0 && i < p->thread_count; i++) {
        if (i >= cut->threads && !p->threads[i].gil)
            continue; /* Whoever holds the interpreter's lock may be the cause. */
        buf_append_str(out, i ? ", " : "");
        put_thread(out, &p->threads[i], cut);
    }
    buf_append_str(out, "]}");
}

static void put_rank(struct buf *out, const struct stack_rank *r, bool with_node,
                     const struct cut *cut)
{
    buf_printf(out, "{\"rank\": %" PRId64 ", \"local_rank\": %" PRId64, r->rank,
               r->local_rank);
    put_member(out, "node", with_node ? r->node : "");
    buf_append_str(out, ", \"processes\": [");
    for (size_t k = 0; k < MIN_OF(r->process_count, cut->processes); k++) {
        buf_append_str(out, k ? ", " : "");
        put_process(out, &r->processes[k], cut);
    }
    buf_append_str(out, "]}");
}

static int print_cut(struct buf *out, const struct stack_sample *s, const char *node,
                     const struct cut *cut)
{
    buf_append_str(out, "{\"node\": ");
    json_text(out, node ? node : "");
    buf_append_str(out, s->held ? ", \"held\": true" : "");
    buf_append_str(out, ", \"notes\": [");
    for (size_t i = 0; i < s->note_count; i++) {
        buf_append_str(out, i ? ", " : "");
        json_text(out, s->notes[i]);
    }
    buf_append_str(out, "], \"ranks\": [");
    for (size_t i = 0; i < s->count; i++) {
        buf_append_str(out, i ? ", " : "");
        put_rank(out, &s->ranks[i], !node, cut);
    }
    buf_append_str(out, "]}");
    return buf_error(out);
}

int stack_sample_print(struct buf *out, const struct stack_sample *s, const char *node)
{
    return print_cut(out, s, node, &cuts[0]);
}

int stack_sample_print_within(struct buf *out, const struct stack_sample *s,
                              const char *node, size_t most)
{
    for (size_t i = 0; i < ARRAY_LEN(cuts); i++) {
        struct buf b;

        buf_init(&b, most);
        int rc = print_cut(&b, s, node, &cuts[i]);
        if (rc == 0)
            rc = buf_append_span(out, buf_span(&b));
        buf_fini(&b);
        if (rc != MUSTER_EFULL)
            return rc;
    }
    return MUSTER_EFULL;
}

/* --- in --------------------------------------------------------------------------- */

/* Escaped copies of texts, or "" where there is none; *failed once memory is short. */
static const char *member_text(struct arena *a, const json_t *value, bool *failed)
{
    const char *text = json_is_string(value) ? json_string_value(value) : "";
    const char *copy = *text ? clean_text(a, span_str(text)) : "";

    *failed = *failed || !copy;
    return copy ? copy : "";
}

static uint64_t count_of(const json_t *value)
{
    const json_int_t n = json_is_integer(value) ? json_integer_value(value) : 0;

    return n > 0 ? (uint64_t)n : 0;
}

static size_t frames_of(struct arena *a, const json_t *list, struct stack_frame **out,
                        bool *failed)
{
    const size_t count = MIN_OF(json_array_size(list), (size_t)STACK_FRAMES_MAX);
    struct stack_frame *f = arena_alloc(a, count, sizeof *f);

    if (!f) {
        *failed = true;
        return 0;
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *one = json_array_get(list, i);

        f[i].name = member_text(a, json_array_get(one, 0), failed);
        f[i].file = member_text(a, json_array_get(one, 1), failed);
        f[i].line = (int64_t)count_of(json_array_get(one, 2));
    }
    *out = f;
    return count;
}

static void parse_threads(struct arena *a, struct stack_process *p, const json_t *list,
                          bool *failed)
{
    const size_t count = MIN_OF(json_array_size(list), (size_t)STACK_THREADS_MAX);
    struct stack_thread *t = arena_alloc(a, count, sizeof *t);

    if (!t) {
        *failed = true;
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *one = json_array_get(list, i);

        t[i].id = (int64_t)count_of(json_object_get(one, "id"));
        t[i].name = member_text(a, json_object_get(one, "name"), failed);
        t[i].gil = json_is_true(json_object_get(one, "gil"));
        t[i].python_count =
            frames_of(a, json_object_get(one, "python"), &t[i].python, failed);
        t[i].native_count =
            frames_of(a, json_object_get(one, "native"), &t[i].native, failed);
    }
    p->threads = t;
    p->thread_count = count;
}

static void parse_process(struct arena *a, struct stack_process *p, const json_t *from,
                          bool *failed)
{
    const char *state = json_string_value(json_object_get(from, "state"));

    p->pid = (int64_t)count_of(json_object_get(from, "pid"));
    p->parent = (int64_t)count_of(json_object_get(from, "parent"));
    p->state = state && strchr("RSDTtZXI", *state) ? *state : 0;
    p->command = member_text(a, json_object_get(from, "command"), failed);
    p->wchan = member_text(a, json_object_get(from, "wchan"), failed);
    p->syscall = member_text(a, json_object_get(from, "syscall"), failed);
    p->switches = count_of(json_object_get(from, "switches"));
    p->cpu_ms = count_of(json_object_get(from, "cpu_ms"));
    p->missing = member_text(a, json_object_get(from, "missing"), failed);
    parse_threads(a, p, json_object_get(from, "threads"), failed);
}

static void parse_rank(struct stack_sample *s, const json_t *from, const char *node,
                       bool *failed)
{
    const json_t *rank = json_object_get(from, "rank");
    const json_t *list = json_object_get(from, "processes");
    const size_t count = MIN_OF(json_array_size(list), (size_t)STACK_PROCESSES_MAX);

    if (!json_is_integer(rank) || json_integer_value(rank) < 0 || count == 0 ||
        s->count >= STACK_RANKS_MAX)
        return;
    struct stack_rank *r = stack_sample_add(s, count);
    if (!r) {
        *failed = true;
        return;
    }
    r->rank = json_integer_value(rank);
    r->local_rank = (int64_t)count_of(json_object_get(from, "local_rank"));
    const char *own = member_text(&s->arena, json_object_get(from, "node"), failed);
    r->node = *own ? own : node;
    for (size_t i = 0; i < count; i++)
        parse_process(&s->arena, &r->processes[i], json_array_get(list, i), failed);
}

static int parse_node(struct stack_sample *s, const json_t *from)
{
    const json_t *notes = json_object_get(from, "notes");
    const json_t *ranks = json_object_get(from, "ranks");
    bool failed = false;
    const char *node = member_text(&s->arena, json_object_get(from, "node"), &failed);

    s->held = s->held || json_is_true(json_object_get(from, "held"));
    for (size_t i = 0; i < json_array_size(notes); i++) {
        const char *text = json_string_value(json_array_get(notes, i));

        if (text && stack_sample_note(s, text) != 0)
            failed = true;
    }
    for (size_t i = 0; !failed && i < json_array_size(ranks); i++)
        parse_rank(s, json_array_get(ranks, i), node, &failed);
    return failed ? MUSTER_ENOMEM : 0;
}

int stack_sample_parse(struct stack_sample *s, struct span json,
                       struct muster_error *err)
{
    const size_t count = s->count, notes = s->note_count;
    json_t *root = NULL;
    int rc =
        json.n > STACK_JOB_BYTES ? MUSTER_EPROTO : json_from_python(&root, json, err);

    if (rc == MUSTER_ENOMEM)
        return rc;
    if (rc != 0 || !json_is_object(root)) {
        json_decref(root);
        return err_set(err, MUSTER_EPROTO, "this is not a node's sample of stacks");
    }
    rc = parse_node(s, root);
    json_decref(root);
    if (rc == 0)
        return 0;
    assert(count <= s->count && notes <= s->note_count);
    s->count = count;
    s->note_count = notes;
    return err_nomem(err);
}

int stack_sample_parse_of(struct stack_sample *s, struct span json, struct span node,
                          struct muster_error *err)
{
    size_t i = s->count;
    int rc = stack_sample_parse(s, json, err);
    const char *name = rc == 0 && node.n ? clean_text(&s->arena, node) : NULL;

    for (; name && i < s->count; i++)
        s->ranks[i].node = name;
    return rc;
}
