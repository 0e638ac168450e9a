/* mem.h - all memory of the project comes through here, so that a test can make the
 * n-th allocation fail. Sizes are checked for overflow. */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stddef.h>
#include <stdint.h>

void *mem_alloc(size_t size);
void *mem_calloc(size_t count, size_t size);
void *mem_realloc(void *p, size_t size);
void *mem_realloc_array(void *p, size_t count, size_t size);
/* Makes room for item `index` in an array of *count items of size bytes. An array that
 * grows is at least doubled, its new items are zeroed and *count is set. On NULL, p and
 * *count are as they were. */
void *mem_grow_to(void *p, size_t *count, size_t index, size_t size);
void mem_free(void *p);
char *mem_strdup(const char *s);
char *mem_strndup(const char *s, size_t n); /* always terminated */
void *mem_memdup(const void *p, size_t n);
char *mem_printf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* For tests, per thread: the n-th allocation from now (1 is the next) and all after it
 * fail; 0 makes them all succeed again. */
void mem_fail_from(unsigned long nth);

/* For tests, per thread: how many allocations were asked for since the thread began. */
unsigned long mem_count(void);

#endif
