/* dlopen.h - shared libraries that few jobs need, loaded when the first one does.
 *
 * Linked in the usual way they would cost every start of every command time and memory.
 * Each library has a header that lists the functions that are looked up, such as
 * net/curl_dl.h. This is for shared builds (MUSTER_DLOPEN); static ones contain the
 * libraries. */
#ifndef LOOP_DLOPEN_H
#define LOOP_DLOPEN_H

#include <stdbool.h>
#include <stddef.h>

struct muster_error;

struct dlopen_symbol {
    const char *name;
    void *to; /* a pointer to the function pointer (or pointer) that gets its address */
};

struct dlopen_library {
    const char *file;   /* "libcurl.so.4" */
    const char *used;   /* begins the error: "etcd is reached through libcurl" */
    const char *remedy; /* ends it: "Install it (Debian: libcurl4)." */
    const struct dlopen_symbol *symbols;
    size_t count;
    bool global; /* libraries that are loaded later use its symbols, too */
    bool loaded; /* it is never unloaded: its objects may outlive the caller */
};

/* In a static build there is nothing to load. */
#define DLOPEN_INSIDE(load)                                                            \
    int load(struct muster_error *err)                                                 \
    {                                                                                  \
        (void)err;                                                                     \
        return 0;                                                                      \
    }

/* Must be called before anything else of the library. MUSTER_ENOTSUP: it is not
 * installed, or too old. Cheap once it has succeeded; safe from several threads. */
int dlopen_load(struct dlopen_library *l, struct muster_error *err);

#endif
