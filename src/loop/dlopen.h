/* dlopen.h - shared libraries that few jobs need, loaded when the first one does.
 *
 * Linked in the usual way they would cost every start of every command time and memory.
 * A header of its own says for each library which functions are looked up; see
 * curl_dl.h and hwloc_dl.h. Only in shared builds (MUSTER_DLOPEN): a bundle has them
 * inside. */
#ifndef LOOP_DLOPEN_H
#define LOOP_DLOPEN_H

#include <stdbool.h>

/* The address of a function, put where `to`, a pointer to a function pointer, says. */
bool dlopen_find(void *lib, const char *name, void *to);

#endif
