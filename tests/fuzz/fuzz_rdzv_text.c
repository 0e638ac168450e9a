/* fuzz_rdzv_text.c - endpoints, configuration strings and option values. */
#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "rendezvous/core/endpoint.h"
#include "rendezvous/core/params.h"
#include "rendezvous/core/progress.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = mem_strndup((const char *)data, size);
    struct endpoint e;
    struct muster_error err;
    struct rdzv_params p;
    int64_t n;
    int b;

    assert(text);
    if (endpoint_parse(text, -1, &e, &err) == 0) {
        assert(e.port >= -1 && e.port < 65536 && e.host[0]);
        assert(strlen(e.host) < sizeof e.host && !strchr(e.host, ' '));
    } else {
        assert(err.code == MUSTER_EINVAL && err.text[0]);
    }
    assert(params_init(&p, "c10d", text, text, 1, 2, NULL, &err) == 0);
    if (conf_parse(&p, text, &err) == 0) {
        for (size_t i = 0; i < p.count; i++) {
            assert(p.options[i].key[0] && p.options[i].text[0]);
            (void)params_int(&p, p.options[i].key, 0, &n, &err);
            (void)params_bool(&p, p.options[i].key, -1, &b, &err);
        }
    }
    params_fini(&p);
    char others[RDZV_WHY_SIZE];
    progress_other_runs(span_of(data, size), "x", others, sizeof others);
    assert(strlen(others) < sizeof others && !strchr(others, '\n'));
    mem_free(text);
    return 0;
}
