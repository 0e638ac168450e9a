/* fuzz_policy.c - sources of notices, and policies of restarts: whatever is read is
 * printed so that it reads the same, and decides about a few failures without fail. */
#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "policy/core/notice.h"
#include "policy/core/policy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void print(struct buf *b, const struct policy *p)
{
    buf_init(b, SIZE_MAX);
    assert(policy_print(b, p) == 0);
}

static void read_notice(const uint8_t *data, size_t size)
{
    char *text = mem_strndup((const char *)data, size);
    struct muster_error err = { 0 };
    struct notice_sources from;
    int sig;

    assert(text);
    if (notice_parse(&from, text, &err) == 0) {
        assert(from.count <= NOTICE_SIGNALS);
        for (size_t i = 0; i < from.count; i++)
            assert(from.signals[i].sig > 0 && from.signals[i].ms <= NOTICE_MOST_MS);
        assert(!from.command || (from.count == 0 && !from.slurm));
    } else {
        assert(err.code == MUSTER_EINVAL && err.text[0]);
    }
    assert(notice_answer_parse(&sig, text, &err) == 0 || err.text[0]);
    mem_free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct muster_error err = { 0 };
    struct policy p, again;
    struct buf once, twice;
    struct policy_history h = { 0 };

    read_notice(data, size);
    if (policy_scan(&p, span_of(data, size), &err) < 0) {
        assert(err.code == MUSTER_EINVAL && err.text[0]);
        return 0;
    }
    print(&once, &p);
    assert(policy_scan(&again, buf_span(&once), &err) == 0);
    print(&twice, &again);
    assert(span_eq(buf_span(&once), buf_span(&twice)));
    assert(p.count == again.count && p.budget == again.budget);
    for (int i = 0; i < 40; i++) {
        const struct policy_failure f = { .kind = (enum policy_kind)(i % POLICY_OTHER),
                                          .number = i % 5,
                                          .name = span_str("IndentationError"),
                                          .file = span_str("/a/train.py"),
                                          .line = 41,
                                          .used = i / 3,
                                          .allowed = 8,
                                          .now_us = (uint64_t)i * 1000000 };
        struct policy_decision d;

        assert(policy_decide(&p, &h, &f, &d) == 0);
        assert(d.left >= 0 && d.left <= 8 && d.wait_us <= p.wait_most_ms * 1000);
        assert(d.reason > POLICY_BY_NOBODY && d.reason < POLICY_REASONS);
        assert((d.action == POLICY_STOP) == (d.reason > POLICY_BY_FREE));
    }
    policy_explain(&once, &p, 3);
    policy_history_fini(&h);
    policy_fini(&p);
    policy_fini(&again);
    buf_fini(&once);
    buf_fini(&twice);
    return 0;
}
