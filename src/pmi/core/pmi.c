/* pmi.c - see pmi.h. */
#include "pmi/core/pmi.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/map.h"
#include "base/mem.h"
#include "base/py/text.h"

struct pair {
    struct map_link link; /* first; its key points behind the struct */
    char *value;          /* owned */
};

struct worker {
    struct buf in, out;
    bool speaks, in_barrier, finalized, dropped;
    bool in_spawn; /* between mcmd=spawn and endcmd */
};

struct pmi_core {
    struct pmi_place place; /* texts owned */
    struct worker *workers; /* owned */
    struct map pairs;       /* owned, each */
    size_t held;            /* bytes of all pairs */
    struct buf fresh;       /* "key value\n" of what was put since the last barrier */
    int64_t in_barrier;
};

int pmi_core_new(const struct pmi_place *place, struct pmi_core **out)
{
    struct pmi_core *p = mem_calloc(1, sizeof *p);

    if (!p)
        return MUSTER_ENOMEM;
    p->place = *place;
    p->place.name = mem_strdup(place->name);
    p->place.mapping = mem_strdup(place->mapping);
    p->workers = mem_calloc((size_t)place->workers, sizeof *p->workers);
    map_init(&p->pairs, 1);
    buf_init(&p->fresh, PMI_HELD_MOST);
    if (!p->place.name || !p->place.mapping || !p->workers) {
        pmi_core_free(p);
        return MUSTER_ENOMEM;
    }
    for (int64_t i = 0; i < place->workers; i++) {
        buf_init(&p->workers[i].in, PMI_LINE_MOST);
        buf_init(&p->workers[i].out, SIZE_MAX);
    }
    *out = p;
    return 0;
}

void pmi_core_free(struct pmi_core *p)
{
    struct map_link *link;

    if (!p)
        return;
    for (size_t i = 0; (link = map_next(&p->pairs, &i));) {
        struct pair *pair = CONTAINER_OF(link, struct pair, link);

        mem_free(pair->value);
        mem_free(pair);
    }
    map_fini(&p->pairs);
    buf_fini(&p->fresh);
    for (int64_t i = 0; p->workers && i < p->place.workers; i++) {
        buf_fini(&p->workers[i].in);
        buf_fini(&p->workers[i].out);
    }
    mem_free(p->workers);
    mem_free((char *)(uintptr_t)p->place.name);
    mem_free((char *)(uintptr_t)p->place.mapping);
    mem_free(p);
}

void pmi_fx_fini(struct pmi_fx_list *fx)
{
    mem_free(fx->items);
    *fx = (struct pmi_fx_list){ 0 };
}

struct buf *pmi_output(struct pmi_core *p, int64_t worker)
{
    return &p->workers[worker].out;
}

struct span pmi_exchange(const struct pmi_core *p)
{
    return buf_span(&p->fresh);
}

bool pmi_is_speaking(const struct pmi_core *p, int64_t worker)
{
    const struct worker *w = &p->workers[worker];

    return w->speaks && !w->finalized && !w->dropped;
}

static int add_fx(struct pmi_fx_list *fx, struct pmi_fx what)
{
    if (fx->count == fx->size) {
        const size_t size = fx->size ? fx->size * 2 : 8;
        struct pmi_fx *items = mem_realloc_array(fx->items, size, sizeof *items);

        if (!items)
            return MUSTER_ENOMEM;
        fx->items = items;
        fx->size = size;
    }
    fx->items[fx->count++] = what;
    return 0;
}

/* --- pairs --------------------------------------------------------------------------
 */

static const char *pair_get(const struct pmi_core *p, const char *key)
{
    const struct map_link *link = map_get(&p->pairs, span_str(key));

    return link ? CONTAINER_OF(link, struct pair, link)->value : NULL;
}

/* MUSTER_EFULL: there are too many. A key that is put again gets the new value. */
static int pair_put(struct pmi_core *p, struct span key, struct span value)
{
    const size_t more = sizeof(struct pair) + key.n + value.n + 2;
    struct map_link *link = map_get(&p->pairs, key);
    struct pair *pair;
    char *copy;

    if (p->held + more > PMI_HELD_MOST)
        return MUSTER_EFULL;
    copy = mem_strndup((const char *)value.p, value.n);
    if (!copy)
        return MUSTER_ENOMEM;
    if (link) {
        pair = CONTAINER_OF(link, struct pair, link);
        mem_free(pair->value);
        pair->value = copy;
        return 0;
    }
    pair = mem_alloc(sizeof *pair + key.n);
    if (!pair || map_reserve(&p->pairs, 1)) {
        mem_free(pair);
        mem_free(copy);
        return MUSTER_ENOMEM;
    }
    memcpy(pair + 1, key.p, key.n);
    *pair = (struct pair){ { span_of(pair + 1, key.n) }, copy };
    map_add(&p->pairs, &pair->link);
    p->held += more;
    return 0;
}

/* --- what a line asks for -----------------------------------------------------------
 */

/* The value of a word "name=value" of the line, NUL-terminated in room; NULL: there is
 * no such word, or it is too long. The value of "value" goes to the end of the line. */
static const char *word_of(const char *line, const char *name, char *room, size_t size)
{
    const size_t n = strlen(name);

    for (const char *at = line; *at;) {
        const bool here = strncmp(at, name, n) == 0 && at[n] == '=';
        const bool last = strncmp(at, "value=", 6) == 0;

        if (here) {
            const size_t length = last ? strlen(at + n + 1) : strcspn(at + n + 1, " ");

            if (length >= size)
                return NULL;
            memcpy(room, at + n + 1, length);
            room[length] = '\0';
            return room;
        }
        if (last)
            return NULL;
        at += strcspn(at, " ");
        at += strspn(at, " ");
    }
    return NULL;
}

static bool is_our_space(const struct pmi_core *p, const char *line)
{
    char name[PMI_NAME_MOST];
    const char *given = word_of(line, "kvsname", name, sizeof name);

    return given && strcmp(given, p->place.name) == 0;
}

static int take_put(struct pmi_core *p, struct worker *w, const char *line)
{
    char key[PMI_KEY_MOST + 1], value[PMI_VALUE_MOST + 1];
    const char *why = "success";
    int rc = 0;

    if (!is_our_space(p, line))
        why = "no_such_kvsname";
    else if (!word_of(line, "key", key, sizeof key) || !*key ||
             !word_of(line, "value", value, sizeof value))
        why = "no_key_and_value_of_a_length_that_get_maxes_has_told";
    else
        rc = pair_put(p, span_str(key), span_str(value));
    if (rc == 0 && *why == 's')
        rc = p->place.nodes > 1 ? buf_printf(&p->fresh, "%s %s\n", key, value) : 0;
    if (rc == MUSTER_EFULL) {
        why = "too_many_pairs";
        rc = 0;
    }
    if (rc == 0)
        rc = buf_printf(&w->out, "cmd=put_result rc=%d msg=%s\n", *why == 's' ? 0 : -1,
                        why);
    return rc;
}

static int take_get(struct pmi_core *p, struct worker *w, const char *line)
{
    char key[PMI_KEY_MOST + 1] = "";
    const char *value = NULL;

    if (is_our_space(p, line) && word_of(line, "key", key, sizeof key))
        value = strcmp(key, "PMI_process_mapping") == 0 ? p->place.mapping
                                                        : pair_get(p, key);
    if (value)
        return buf_printf(&w->out, "cmd=get_result rc=0 msg=success value=%s\n", value);
    return buf_printf(&w->out,
                      "cmd=get_result rc=-1 msg=key_%s_not_found value=unknown\n", key);
}

static int open_barrier(struct pmi_core *p, struct pmi_fx_list *fx)
{
    int rc = 0;

    p->in_barrier = 0;
    for (int64_t i = 0; rc == 0 && i < p->place.workers; i++) {
        struct worker *w = &p->workers[i];

        if (!w->in_barrier)
            continue;
        w->in_barrier = false;
        rc = buf_append_str(&w->out, "cmd=barrier_out rc=0\n");
        if (rc == 0)
            rc = add_fx(fx, (struct pmi_fx){ .kind = PMI_SEND, .worker = i });
    }
    return rc;
}

static int take_barrier(struct pmi_core *p, struct worker *w, struct pmi_fx_list *fx)
{
    if (w->in_barrier)
        return 0;
    w->in_barrier = true;
    if (++p->in_barrier < p->place.workers)
        return 0;
    return p->place.nodes > 1 ? add_fx(fx, (struct pmi_fx){ .kind = PMI_GATHER })
                              : open_barrier(p, fx);
}

static int take_abort(int64_t worker, const char *line, struct pmi_fx_list *fx)
{
    char text[24];
    int64_t code = 1;

    if (word_of(line, "exitcode", text, sizeof text))
        (void)py_int(span_str(text), &code);
    return add_fx(fx,
                  (struct pmi_fx){ .kind = PMI_ABORT, .worker = worker, .code = code });
}

static int drop(struct worker *w, int64_t worker, const char *why,
                struct pmi_fx_list *fx)
{
    w->dropped = true;
    return add_fx(fx,
                  (struct pmi_fx){ .kind = PMI_DROP, .worker = worker, .why = why });
}

static int take_init(struct worker *w, const char *line)
{
    char version[8];
    const char *v = word_of(line, "pmi_version", version, sizeof version);
    const bool good = v && strcmp(v, "1") == 0;

    w->speaks = good;
    return buf_printf(&w->out,
                      "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=%d\n",
                      good ? 0 : -1);
}

/* What we do not do, and how its answer begins. MPI tells the caller that it failed. */
static const char *refused_answer(const char *cmd)
{
    static const struct {
        const char *cmd, *answer;
    } rows[] = { { "publish_name", "publish_result" },
                 { "unpublish_name", "unpublish_result" },
                 { "lookup_name", "lookup_result" },
                 { "spawn", "spawn_result" } };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (strcmp(cmd, rows[i].cmd) == 0)
            return rows[i].answer;
    return NULL;
}

static int take_line(struct pmi_core *p, int64_t worker, const char *line,
                     struct pmi_fx_list *fx)
{
    struct worker *w = &p->workers[worker];
    char cmd[32];
    const char *answer;

    if (w->in_spawn) { /* its words come in lines, up to this one */
        if (strcmp(line, "endcmd") != 0)
            return 0;
        w->in_spawn = false;
        return buf_append_str(&w->out, "cmd=spawn_result rc=-1 msg=not_supported\n");
    }
    w->in_spawn = strcmp(line, "mcmd=spawn") == 0;
    if (w->in_spawn)
        return 0;
    if (!word_of(line, "cmd", cmd, sizeof cmd))
        return drop(w, worker, "a line without a command", fx);
    if (strcmp(cmd, "init") == 0)
        return take_init(w, line);
    if (!w->speaks)
        return drop(w, worker, "a command before init", fx);
    if (strcmp(cmd, "get_maxes") == 0)
        return buf_printf(&w->out,
                          "cmd=maxes kvsname_max=%u keylen_max=%u vallen_max=%u rc=0\n",
                          PMI_NAME_MOST, PMI_KEY_MOST, PMI_VALUE_MOST);
    if (strcmp(cmd, "get_my_kvsname") == 0)
        return buf_printf(&w->out, "cmd=my_kvsname kvsname=%s rc=0\n", p->place.name);
    if (strcmp(cmd, "get_appnum") == 0)
        return buf_append_str(&w->out, "cmd=appnum appnum=0 rc=0\n");
    if (strcmp(cmd, "get_universe_size") == 0)
        return buf_printf(&w->out, "cmd=universe_size size=%" PRId64 " rc=0\n",
                          p->place.world_size);
    if (strcmp(cmd, "put") == 0)
        return take_put(p, w, line);
    if (strcmp(cmd, "get") == 0)
        return take_get(p, w, line);
    if (strcmp(cmd, "barrier_in") == 0)
        return take_barrier(p, w, fx);
    if (strcmp(cmd, "abort") == 0)
        return take_abort(worker, line, fx);
    if (strcmp(cmd, "finalize") == 0) {
        w->finalized = true;
        return buf_append_str(&w->out, "cmd=finalize_ack rc=0\n");
    }
    answer = refused_answer(cmd);
    if (answer)
        return buf_printf(&w->out, "cmd=%s rc=-1 msg=not_supported\n", answer);
    return drop(w, worker, "an unknown command", fx);
}

int pmi_bytes(struct pmi_core *p, int64_t worker, struct span bytes,
              struct pmi_fx_list *fx)
{
    struct worker *w = &p->workers[worker];
    int rc = 0;

    assert(worker >= 0 && worker < p->place.workers);
    while (rc == 0 && bytes.n > 0 && !w->dropped) {
        const uint8_t *newline = memchr(bytes.p, '\n', bytes.n);
        const size_t n = newline ? (size_t)(newline - bytes.p) : bytes.n;

        rc = buf_append(&w->in, bytes.p, n);
        bytes =
            span_of(bytes.p + n + (newline != NULL), bytes.n - n - (newline != NULL));
        if (rc == MUSTER_EFULL)
            return drop(w, worker, "a line of more than 4 KiB", fx);
        if (rc || !newline)
            break;
        if (buf_len(&w->in) && memchr(buf_data(&w->in), '\0', buf_len(&w->in)))
            return drop(w, worker, "a line with a NUL in it", fx);
        rc = buf_u8(&w->in, 0);
        if (rc == MUSTER_EFULL)
            return drop(w, worker, "a line of more than 4 KiB", fx);
        if (rc == 0)
            rc = take_line(p, worker, (const char *)buf_data(&w->in), fx);
        buf_clear(&w->in);
    }
    if (rc == 0 && buf_len(&w->out) && !w->dropped)
        rc = add_fx(fx, (struct pmi_fx){ .kind = PMI_SEND, .worker = worker });
    return rc;
}

/* What another node says is taken as far as it makes sense. */
static int take_pairs(struct pmi_core *p, const char *text)
{
    int rc = 0;

    while (rc == 0 && *text) {
        const size_t n = strcspn(text, "\n"), key = strcspn(text, " \n");

        if (key > 0 && key < n && key <= PMI_KEY_MOST && n - key - 1 <= PMI_VALUE_MOST)
            rc = pair_put(p, span_of(text, key), span_of(text + key + 1, n - key - 1));
        text += n + (text[n] == '\n');
    }
    return rc == MUSTER_EFULL ? 0 : rc;
}

int pmi_gathered(struct pmi_core *p, const struct text_list *texts,
                 struct pmi_fx_list *fx)
{
    int rc = 0;

    buf_clear(&p->fresh);
    for (size_t i = 0; rc == 0 && i < texts->count; i++)
        rc = take_pairs(p, texts->items[i]);
    return rc ? rc : open_barrier(p, fx);
}
