/* fuzz_http_rules.c - addresses, Host headers, keys, and lines of /proc/PID/stat. */
#include <assert.h>

#include "base/mem.h"
#include "process/core/proc_stat.h"
#include "status/core/http_rules.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = mem_strndup((const char *)data, size);
    const struct http_visit v = { true, text, text, text };
    struct http_address a;
    struct proc_stat p;

    assert(text);
    if (http_address_parse(text, &a, NULL) == 0)
        assert(strlen(a.host) < sizeof a.host);
    if (http_host_is_local(text)) {
        for (const char *c = text; *c; c++)
            assert(strchr("0123456789abcdefABCDEF.:[]localhostLOCALHOST", *c));
    }
    (void)http_may_see(&v, "0123");
    (void)proc_stat_parse(span_of(data, size), &p);
    mem_free(text);
    return 0;
}
