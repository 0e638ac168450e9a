/* os_mem.c - base/mem.h for simulated processes. The memory of a process is freed when
 * it is killed, an agent that ends by itself must have freed all of it, and any
 * allocation can be made to fail. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "sim/os.h"

struct os_block {
    struct os_process *owner; /* NULL: the simulator */
    struct os_block *prev, *next;
    size_t size;
    _Alignas(16) char bytes[];
};

/* Of the simulator itself. fail_at 0: none fails. */
static unsigned long fail_at, asked;

static bool refused(void)
{
    struct os_process *p = os.current;

    if (!p)
        return ++asked == fail_at;
    return ++p->asked == p->fail_at;
}

static struct os_block *block_of(void *p)
{
    return (struct os_block *)(void *)((char *)p - offsetof(struct os_block, bytes));
}

static void link_block(struct os_block *b)
{
    struct os_process *p = b->owner;

    if (!p)
        return;
    b->prev = NULL;
    b->next = p->memory;
    if (b->next)
        b->next->prev = b;
    p->memory = b;
    p->blocks++;
}

static void unlink_block(struct os_block *b)
{
    struct os_process *p = b->owner;

    if (!p)
        return;
    if (b->prev)
        b->prev->next = b->next;
    else
        p->memory = b->next;
    if (b->next)
        b->next->prev = b->prev;
    p->blocks--;
}

void mem_fail_from(unsigned long nth)
{
    fail_at = nth ? asked + nth : 0;
}

unsigned long mem_count(void)
{
    return os.current ? os.current->asked : asked;
}

void *mem_alloc(size_t size)
{
    struct os_block *b;

    if (refused())
        return NULL;
    b = malloc(sizeof *b + MAX_OF(size, 1u));
    if (!b)
        return NULL;
    b->owner = os.current;
    b->size = size;
    link_block(b);
    return b->bytes;
}

void *mem_calloc(size_t count, size_t size)
{
    void *p;

    if (size && count > SIZE_MAX / size)
        return NULL;
    p = mem_alloc(count * size);
    return p ? memset(p, 0, count * size) : NULL;
}

void mem_free(void *p)
{
    struct os_block *b;

    if (!p)
        return;
    b = block_of(p);
    assert(!os.current || b->owner == os.current || !b->owner);
    unlink_block(b);
    free(b);
}

void *mem_realloc(void *p, size_t size)
{
    void *to = mem_alloc(size);

    if (to && p) {
        memcpy(to, p, MIN_OF(size, block_of(p)->size));
        mem_free(p);
    }
    return to;
}

void os_memory_free(struct os_process *p)
{
    struct os_block *b;

    while ((b = p->memory)) {
        p->memory = b->next;
        free(b);
    }
    p->blocks = 0;
}
