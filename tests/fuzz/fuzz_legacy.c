/* fuzz_legacy.c - documents of the legacy etcd rendezvous, as anybody may have written
 * them: what is read can be changed and printed, and read again; and the state machine
 * survives them as answers. The first byte says what is done to the document. */
#include <assert.h>

#include "etcd/legacy/core/document.h"
#include "etcd/legacy/core/machine.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* As the state machine does it: each change has a status that it is for. */
static int change(struct legacy_doc *d, uint8_t how)
{
    switch (d->status) {
    case LEGACY_JOINABLE:
        if (how % 3 == 0)
            return legacy_doc_join(d);
        if (how % 3 == 1 && d->participants)
            return legacy_doc_freeze(d);
        break;
    case LEGACY_FROZEN:
        if (how % 3 != 2)
            return legacy_doc_confirm(d, "/torchelastic/p2p/run_x/rdzv/v_1/rank_0");
        break;
    case LEGACY_FINAL:
        if (how % 3 != 2)
            return legacy_doc_wait(d);
        break;
    case LEGACY_SETUP:
    case LEGACY_CLOSED:
        break;
    }
    return legacy_doc_close(d);
}

static void check_doc(uint8_t how, struct span text)
{
    struct legacy_doc d = { 0 }, again = { 0 };
    struct muster_error err = { 0 };
    struct buf out;

    if (legacy_doc_read(&d, text, &err) < 0) {
        assert(err.code < 0 && err.text[0]);
        return;
    }
    for (size_t i = 0; i < d.keep_alives; i++)
        assert(legacy_doc_keep_alive(&d, i));
    buf_init(&out, SIZE_MAX);
    if (change(&d, how) == 0 && legacy_doc_print(&d, &out) == 0)
        assert(legacy_doc_read(&again, buf_span(&out), NULL) == 0);
    legacy_doc_fini(&again);
    legacy_doc_fini(&d);
    buf_fini(&out);
}

static void feed(struct legacy *l, struct legacy_event ev, uint64_t *now_ms,
                 bool *asked)
{
    struct legacy_fx fx;

    ev.now.mono_ms = *now_ms += 150;
    (void)legacy_step(l, &ev, &fx);
    for (size_t i = 0; i < fx.count; i++) {
        if (fx.at[i].kind == LEGACY_FX_REQUEST)
            *asked = true;
        if (fx.at[i].kind == LEGACY_FX_CANCEL)
            *asked = false;
    }
}

/* Every answer is the document, or an error by the bits of `how`. */
static void play(uint8_t how, struct span text)
{
    const struct legacy_config cfg = { .prefix = "/p",
                                       .run_id = "x",
                                       .min_nodes = 1,
                                       .max_nodes = 2,
                                       .timeout_ms = 4000,
                                       .last_call_ms = 100 };
    static const int codes[] = { 0, 0, MUSTER_EEXIST, MUSTER_ENOENT, MUSTER_ETIMEDOUT };
    struct legacy *l;
    uint64_t now_ms = 1000;
    bool asked = false;

    if (legacy_new(&cfg, &l, NULL) < 0)
        return;
    feed(l, (struct legacy_event){ .kind = LEGACY_EV_JOIN }, &now_ms, &asked);
    for (unsigned i = 0; i < 40; i++) {
        struct legacy_event ev = { .kind = LEGACY_EV_TIMER };

        if (asked)
            ev = (struct legacy_event){ .kind = LEGACY_EV_REPLY,
                                        .code = codes[(how + i * 7u) % 5],
                                        .value = text,
                                        .modified_index = i + 1,
                                        .index = i + 1 };
        asked = false;
        feed(l, ev, &now_ms, &asked);
    }
    legacy_free(l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    check_doc(data[0], span_of(data + 1, size - 1));
    play(data[0], span_of(data + 1, size - 1));
    return 0;
}
