/* file_timer.c - see file_timer.h. */
#include "agent/core/file_timer.h"

#include <math.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/py/json.h"

#define LINE_MAX_BYTES 65536u

void timers_init(struct timers *t)
{
    *t = (struct timers){ 0 };
    buf_init(&t->line, LINE_MAX_BYTES);
}

static void timers_drop(struct timers *t, size_t i)
{
    mem_free(t->list[i].scope);
    t->list[i] = t->list[--t->count];
}

void timers_fini(struct timers *t)
{
    while (t->count > 0)
        timers_drop(t, 0);
    mem_free(t->list);
    buf_fini(&t->line);
    *t = (struct timers){ 0 };
}

static struct timer_entry *timers_find(struct timers *t, int64_t pid, const char *scope)
{
    for (size_t i = 0; i < t->count; i++)
        if (t->list[i].pid == pid && strcmp(t->list[i].scope, scope) == 0)
            return &t->list[i];
    return NULL;
}

static int timers_add(struct timers *t, int64_t pid, const char *scope,
                      struct timer_entry **out, struct muster_error *err)
{
    if (t->count == TIMERS_MAX)
        return err_set(err, MUSTER_EFULL, "more than %u timers", TIMERS_MAX);
    struct timer_entry *list = mem_grow_to(t->list, &t->size, t->count, sizeof *list);
    if (!list)
        return err_nomem(err);
    t->list = list;
    char *copy = mem_strdup(scope);
    if (!copy)
        return err_nomem(err);
    *out = &t->list[t->count++];
    **out = (struct timer_entry){ .pid = pid, .scope = copy };
    return 0;
}

/* A negative time takes the entry out, any other puts it in or moves it. */
static int timers_apply(struct timers *t, struct span line, struct muster_error *err)
{
    json_t *root = NULL; /* stays so if it is not JSON; then nothing is in it */
    int rc = json_from_python(&root, line, NULL);
    const json_t *pid = json_object_get(root, "pid");
    const char *scope = json_string_value(json_object_get(root, "scope_id"));
    const json_t *when = json_object_get(root, "expiration_time");
    const json_t *sig = json_object_get(root, "signal");

    if (rc == MUSTER_ENOMEM)
        return err_nomem(err);
    if (!json_is_integer(pid) || !scope || !json_is_number(when) ||
        !json_is_integer(sig)) {
        rc = err_set(err, MUSTER_EPROTO, "no timer request: %.*s",
                     (int)MIN_OF(line.n, 200), (const char *)line.p);
    } else {
        const int64_t id = json_integer_value(pid);
        struct timer_entry *e = timers_find(t, id, scope);
        if (json_number_value(when) < 0) {
            if (e)
                timers_drop(t, (size_t)(e - t->list));
        } else {
            if (!e)
                rc = timers_add(t, id, scope, &e, err);
            if (rc == 0) {
                const int64_t s = json_integer_value(sig);
                e->expires = json_number_value(when);
                e->sig = s > 0 && s <= 64 ? (int)s : 0;
            }
        }
    }
    json_decref(root);
    return rc;
}

int timers_feed(struct timers *t, struct span bytes, struct muster_error *err)
{
    int first = 0;

    while (bytes.n > 0) {
        const uint8_t *end = memchr(bytes.p, '\n', bytes.n);
        const size_t n = end ? (size_t)(end - bytes.p) : bytes.n;
        int rc = buf_append(&t->line, bytes.p, n);
        if (rc == MUSTER_EFULL) { /* no client writes such a line */
            buf_clear(&t->line);
            rc = err_set(err, MUSTER_EPROTO, "a line without end");
        }
        if (rc == 0 && end && buf_len(&t->line) > 0)
            rc = timers_apply(t, buf_span(&t->line), first ? NULL : err);
        if (end) /* Also if there was no memory for it: the next line is another one. */
            buf_clear(&t->line);
        first = first ? first : rc;
        bytes = span_of(bytes.p + n + (end ? 1 : 0), bytes.n - n - (end ? 1 : 0));
    }
    return first;
}

double timers_next(const struct timers *t)
{
    double next = INFINITY;

    for (size_t i = 0; i < t->count; i++)
        next = MIN_OF(t->list[i].expires, next); /* not a number: next */
    return next;
}

bool timers_expire(struct timers *t, double now, struct timer_entry *out)
{
    struct timer_entry *first = NULL;

    for (size_t i = 0; i < t->count; i++) {
        struct timer_entry *e = &t->list[i];
        if (e->expires > now || (first && first->pid != e->pid))
            continue;
        const bool better =
            !first || (e->sig > 0) > (first->sig > 0) ||
            ((e->sig > 0) == (first->sig > 0) && e->expires < first->expires);
        if (better)
            first = e;
    }
    if (!first)
        return false;
    *out = *first;
    first->scope = NULL; /* the caller's now */
    for (size_t i = 0; i < t->count;) {
        if (t->list[i].pid == out->pid)
            timers_drop(t, i);
        else
            i++;
    }
    return true;
}
