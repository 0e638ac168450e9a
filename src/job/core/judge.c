/* judge.c - see judge.h. */
#include "job/core/judge.h"

#include <assert.h>

#include "base/mem.h"

/* What gloo, NCCL, MPI, torch's store and the C library say, in lower case, when the
 * other side of a connection is gone. */
static const char *const echoes[] = {
    "connection closed by peer",
    "connection closed by remote",
    "connection reset by peer",
    "connection was reset",
    "connection was likely closed",
    "connection refused",
    "connectionreseterror",
    "connectionrefusederror",
    "connection aborted",
    "broken pipe",
    "brokenpipeerror",
    "socket closed",
    "remote end closed",
    "failed to recv, got 0 bytes",
    "ncclremoteerror",
    "remote process exited",
    "peer closed",
    "store is gone",
    "distnetworkerror",
    "watchdog caught collective operation timeout",
    "timed out waiting",
    "wait timeout",
    "no route to host",
    "software caused connection abort",
};

static uint8_t lower(uint8_t c)
{
    return c >= 'A' && c <= 'Z' ? (uint8_t)(c + 32) : c;
}

static bool contains(struct span text, const char *words)
{
    const size_t n = strlen(words);

    for (size_t i = 0; i + n <= text.n; i++) {
        size_t k = 0;

        while (k < n && lower(text.p[i + k]) == (uint8_t)words[k])
            k++;
        if (k == n)
            return true;
    }
    return false;
}

bool judge_is_echo(const struct record_entry *e)
{
    /* Python's exception is in text. A C++ program that aborts has only its last words.
     * Those of a worker that was killed have nothing to do with its end. */
    const bool words = e->cause == CAUSE_EXIT || e->cause == CAUSE_CRASH;

    for (size_t i = 0; i < ARRAY_LEN(echoes); i++)
        if (contains(e->text, echoes[i]) || (words && contains(e->body, echoes[i])))
            return true;
    return false;
}

int judge_compare(const struct record_entry *a, const struct record_entry *b)
{
    const int echo = judge_is_echo(a) - judge_is_echo(b);

    if (echo != 0)
        return echo;
    if (a->at_us != b->at_us)
        return a->at_us < b->at_us ? -1 : 1;
    return (a->rank > b->rank) - (a->rank < b->rank);
}

bool judge_simultaneous(const struct record_entry *a, const struct record_entry *b)
{
    const int64_t apart =
        a->at_us > b->at_us ? a->at_us - b->at_us : b->at_us - a->at_us;

    if (judge_is_echo(a) != judge_is_echo(b) || a->node == b->node)
        return false;
    return apart <= a->unsure_us + b->unsure_us;
}

static bool same_worker(const struct record_entry *a, const struct record_entry *b)
{
    return a->node == b->node && a->pid == b->pid && a->rank == b->rank;
}

/* Moves the failures from index `from` on to index `to`. */
static void shift(struct judge_list *l, size_t from, size_t to)
{
    const size_t n = l->count - from;

    assert(from <= l->count && to + n <= RECORD_FAILED_MAX);
    memmove(&l->worst[to], &l->worst[from], n * sizeof l->worst[0]);
    memmove(&l->texts[to], &l->texts[from], n * sizeof l->texts[0]);
}

static void forget_worker(struct judge_list *l, const struct record_entry *f)
{
    size_t i = 0;

    while (i < l->count && !same_worker(&l->worst[i], f))
        i++;
    if (i == l->count)
        return;
    mem_free(l->texts[i]);
    shift(l, i + 1, i);
    l->count--;
    l->failed--;
}

int judge_list_keep(struct judge_list *l, const struct record_entry *f)
{
    struct record_entry copy = *f;
    size_t at = 0;
    struct buf b;

    record_trim(&copy);
    buf_init(&b, SIZE_MAX);
    if (record_entry_encode(&b, &copy) < 0 ||
        record_entry_decode(buf_span(&b), &copy, NULL) < 0) {
        buf_fini(&b);
        return MUSTER_ENOMEM;
    }
    forget_worker(l, f);
    l->failed++;
    while (at < l->count && judge_compare(&l->worst[at], f) <= 0)
        at++;
    if (at == RECORD_FAILED_MAX) {
        buf_fini(&b);
        return 0;
    }
    if (l->count == RECORD_FAILED_MAX)
        mem_free(l->texts[--l->count]);
    shift(l, at, at + 1);
    l->worst[at] = copy;
    l->texts[at] = b.mem;
    l->count++;
    assert(l->count <= RECORD_FAILED_MAX && (int64_t)l->count <= l->failed);
    return 0;
}

void judge_list_fini(struct judge_list *l)
{
    for (size_t i = 0; i < l->count; i++)
        mem_free(l->texts[i]);
    l->count = 0;
    l->failed = 0;
}
