/* golden.h - bytes captured from real peers, for unit tests. */
#ifndef TESTS_GOLDEN_H
#define TESTS_GOLDEN_H

#include <stdio.h>
#include <stdlib.h>

#include "testing.h"

/* The whole file tests/golden/<name>, with a NUL behind it; the caller frees. */
static inline char *golden_read(const char *name, size_t *n)
{
    char path[512];
    char *text = NULL;
    FILE *f;

    (void)snprintf(path, sizeof path, "%s/%s", GOLDEN_DIR, name);
    f = fopen(path, "rb");
    if (!f)
        fail_msg("no golden file %s", path);
    (void)fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    text = malloc(*n + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, *n, f), *n);
    text[*n] = '\0';
    (void)fclose(f);
    return text;
}

#endif
