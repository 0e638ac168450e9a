/* mem.c - malloc with a switch for tests; see mem.h. */
#include "base/mem.h"

#include <stdlib.h>

static _Thread_local unsigned long asked;
static _Thread_local unsigned long fail_at; /* 0: never */

static int refused(void)
{
    asked++;
    return fail_at && asked >= fail_at;
}

void mem_fail_from(unsigned long nth)
{
    fail_at = nth ? asked + nth : 0;
}

unsigned long mem_count(void)
{
    return asked;
}

void *mem_alloc(size_t size)
{
    return refused() ? NULL : malloc(size ? size : 1);
}

void *mem_calloc(size_t count, size_t size)
{
    return refused() ? NULL : calloc(count ? count : 1, size ? size : 1);
}

void *mem_realloc(void *p, size_t size)
{
    return refused() ? NULL : realloc(p, size ? size : 1);
}

void mem_free(void *p)
{
    free(p);
}
