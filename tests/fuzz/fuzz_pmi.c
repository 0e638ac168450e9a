/* fuzz_pmi.c - what workers send on PMI_FD, and what other nodes put into the store. A
 * byte 0 to 3 begins a piece: of worker 0 or 1, of another node, or the texts of nodes
 * for --for. */
#include <assert.h>

#include "base/mem.h"
#include "launch/core/framework.h"
#include "pmi/core/pmi.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_nodes(const struct text_list *nodes)
{
    struct buf b;

    buf_init(&b, SIZE_MAX);
    if (framework_nodes_check(nodes, 2, NULL) == 0) {
        assert(framework_put_coordinator(&b, nodes, true, true) == 0 &&
               buf_len(&b) > 2);
        assert(framework_put_cluster(&b, nodes) == 0);
        assert(framework_mapping(&b, nodes) == 0);
    }
    buf_fini(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct pmi_place place = { 2, 2, 4, "kvs", "(vector,(0,2,2))" };
    struct pmi_fx_list fx = { 0 };
    struct pmi_core *p;
    int rc = pmi_core_new(&place, &p);

    for (size_t at = 0; rc == 0 && at < size;) {
        const uint8_t who = data[at] & 3;
        size_t end = at + 1;
        struct text_list texts = { 0 };

        while (end < size && data[end] > 3)
            end++;
        fx.count = 0;
        if (who < 2)
            rc = pmi_bytes(p, who, span_of(data + at + 1, end - at - 1), &fx);
        else if (text_list_add(&texts, (const char *)data + at + 1, end - at - 1) ==
                     0 &&
                 who == 2)
            rc = pmi_gathered(p, &texts, &fx);
        else
            check_nodes(&texts);
        for (size_t i = 0; i < fx.count; i++) {
            assert(fx.items[i].worker >= 0 && fx.items[i].worker < 2);
            if (fx.items[i].kind == PMI_SEND)
                buf_clear(pmi_output(p, fx.items[i].worker));
        }
        text_list_fini(&texts);
        at = end;
    }
    pmi_fx_fini(&fx);
    pmi_core_free(p);
    return 0;
}
