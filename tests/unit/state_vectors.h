/* state_vectors.h - states as real torch writes them, for the tests of the pickle: a
 * group's setup and teardown. */
#ifndef TESTS_STATE_VECTORS_H
#define TESTS_STATE_VECTORS_H

#include <jansson.h>

#include "golden.h"

static json_t *vectors; /* of rdzv-state-vectors.json, between the two */

static int load(void **state)
{
    size_t n;
    char *text = golden_read("rdzv-state-vectors.json", &n);

    (void)state;
    vectors = json_loadb(text, n, 0, NULL);
    free(text);
    return vectors ? 0 : -1;
}

static int unload(void **state)
{
    (void)state;
    json_decref(vectors);
    return 0;
}

#endif
