/* cause.c - see cause.h. */
#include "job/core/cause.h"

#include "base/signal_names.h"

/* "torch.OutOfMemoryError: CUDA out of ..." -> "torch.OutOfMemoryError" */
static struct span class_of(struct span text)
{
    size_t n = 0;

    while (n < text.n && text.p[n] != ':' && text.p[n] != ' ' && text.p[n] != '(')
        n++;
    return span_of(text.p, n);
}

/* File "/home/u/train.py", line 41, in load -> the file, and 41 */
static struct span file_of(struct span place, int64_t *line)
{
    static const char head[] = "File \"", mid[] = "\", line ";
    const uint8_t *at;

    *line = 0;
    if (!span_starts(place, head))
        return span_of(NULL, 0);
    place = span_skip(place, sizeof head - 1);
    at = memmem(place.p, place.n, mid, sizeof mid - 1);
    if (!at)
        return span_of(NULL, 0);
    const struct span file = span_of(place.p, (size_t)(at - place.p));

    for (place = span_skip(place, file.n + sizeof mid - 1);
         place.n && place.p[0] >= '0' && place.p[0] <= '9' && *line < INT32_MAX / 10;
         place = span_skip(place, 1))
        *line = *line * 10 + (place.p[0] - '0');
    return file;
}

struct policy_failure cause_of_entry(const struct record_entry *e)
{
    struct policy_failure f = { .kind = POLICY_OTHER };

    switch (e->cause) {
    case CAUSE_EXCEPTION:
        f.kind = POLICY_CLASS;
        f.name = class_of(e->text);
        f.file = file_of(e->place, &f.line);
        break;
    case CAUSE_EXIT:
        f.kind = POLICY_EXIT;
        f.number = (int)e->code;
        break;
    case CAUSE_SIGNAL:
    case CAUSE_CRASH:
        f.kind = POLICY_SIGNAL;
        f.number = (int)-e->code;
        break;
    case CAUSE_MEMORY:
        f.kind = POLICY_OOM;
        break;
    case CAUSE_HANG:
        f.kind = POLICY_HANG;
        break;
    case CAUSE_NODE_LOST:
        f.kind = POLICY_NODE;
        break;
    case CAUSE_NOTICE:
        f.kind = POLICY_NOTICE;
        break;
    case CAUSE_NONE:
    case CAUSE_START:
    case CAUSE_STOPPED:
    case CAUSE_SUCCEEDED:
    case CAUSE_MEMBERSHIP:
    case CAUSE_RENDEZVOUS:
    case CAUSE_CUT_OFF:
    case CAUSE_POLICY:
    case RECORD_CAUSE_COUNT:
        break;
    }
    return f;
}

void cause_decided(struct record_entry *e, const struct policy *p,
                   const struct policy_decision *d, struct buf *text)
{
    buf_clear(text);
    if (d->reason == POLICY_BY_BUDGET || (p->budget && d->action == POLICY_RESTART))
        policy_budget_print(text, p);
    else if (d->rule)
        policy_rule_print(text, d->rule);
    e->reason = d->reason;
    e->left = d->left;
    e->wait_us = (int64_t)d->wait_us;
    e->rule = buf_span(text);
}

void cause_print(struct buf *out, const struct record_entry *e)
{
    const struct policy_failure f = cause_of_entry(e);

    switch (f.kind) {
    case POLICY_CLASS:
        (void)buf_append_span(out, f.name);
        break;
    case POLICY_EXIT:
        (void)buf_printf(out, "exit:%d", f.number);
        break;
    case POLICY_SIGNAL:
        (void)buf_printf(out, "signal:%s", signal_name(f.number));
        break;
    case POLICY_OOM:
        (void)buf_append_str(out, "oom");
        break;
    case POLICY_HANG:
        (void)buf_append_str(out, "hang");
        break;
    case POLICY_NODE:
        (void)buf_append_str(out, "node");
        break;
    case POLICY_NOTICE:
        (void)buf_append_str(out, "notice");
        break;
    case POLICY_ANY:
    case POLICY_REPEAT:
    case POLICY_CHECK:
    case POLICY_OTHER:
        (void)buf_append_str(out, record_cause_name(e->cause));
        break;
    }
}

bool cause_is_deterministic(const struct record_entry *v)
{
    const struct policy_failure f = cause_of_entry(v);

    return v->reason == POLICY_BY_REPEAT || v->cause == CAUSE_START ||
           policy_stops_by_default(&f);
}

int cause_exit_code(const struct record_entry *v)
{
    switch (v->cause) {
    case CAUSE_MEMORY:
        return EXIT_MEMORY;
    case CAUSE_HANG:
        return EXIT_HANG;
    case CAUSE_NODE_LOST:
    case CAUSE_CUT_OFF:
    case CAUSE_RENDEZVOUS:
    case CAUSE_NOTICE:
        return EXIT_TRY_AGAIN;
    case CAUSE_NONE:
    case CAUSE_EXCEPTION:
    case CAUSE_EXIT:
    case CAUSE_SIGNAL:
    case CAUSE_CRASH:
    case CAUSE_START:
    case CAUSE_STOPPED:
    case CAUSE_SUCCEEDED:
    case CAUSE_MEMBERSHIP:
    case CAUSE_POLICY:
    case RECORD_CAUSE_COUNT:
        break;
    }
    return v->reason == POLICY_BY_RULE || cause_is_deterministic(v) ? EXIT_NO_RETRY : 1;
}
