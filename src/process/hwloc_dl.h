/* hwloc_dl.h - hwloc, loaded when a job asks for --numa-binding; see loop/dlopen.h.
 *
 * Callers write the names that hwloc's manual has; of its inline functions only those
 * that call no other. For numa.c alone. */
#ifndef PROCESS_HWLOC_DL_H
#define PROCESS_HWLOC_DL_H

#include <hwloc.h>

#include "base/base.h"
#include "loop/dlopen.h"

#ifdef MUSTER_DLOPEN

#define HWLOC_DL(X)                                                                    \
    X(bitmap_first)                                                                    \
    X(get_nbobjs_by_depth)                                                             \
    X(get_obj_by_depth)                                                                \
    X(get_type_depth)                                                                  \
    X(obj_type_is_dcache)                                                              \
    X(topology_destroy)                                                                \
    X(topology_init)                                                                   \
    X(topology_load)                                                                   \
    X(topology_set_flags)

static struct {
#define MEMBER(name) __typeof__(&hwloc_##name) name;
    HWLOC_DL(MEMBER)
#undef MEMBER
} hwloc_dl;

static const struct dlopen_symbol hwloc_symbols[] = {
#define SYMBOL(name) { "hwloc_" #name, &hwloc_dl.name },
    HWLOC_DL(SYMBOL)
#undef SYMBOL
};

static struct dlopen_library hwloc_library = {
    .file = "libhwloc.so.15",
    .used = "Failed to apply NUMA binding: it needs hwloc, which reads the machine's "
            "topology",
    .remedy = "Install it (Debian: libhwloc15), or leave out --numa-binding.",
    .symbols = hwloc_symbols,
    .count = ARRAY_LEN(hwloc_symbols),
};

#define hwloc_bitmap_first        hwloc_dl.bitmap_first
#define hwloc_get_nbobjs_by_depth hwloc_dl.get_nbobjs_by_depth
#define hwloc_get_obj_by_depth    hwloc_dl.get_obj_by_depth
#define hwloc_get_type_depth      hwloc_dl.get_type_depth
#define hwloc_obj_type_is_dcache  hwloc_dl.obj_type_is_dcache
#define hwloc_topology_destroy    hwloc_dl.topology_destroy
#define hwloc_topology_init       hwloc_dl.topology_init
#define hwloc_topology_load       hwloc_dl.topology_load
#define hwloc_topology_set_flags  hwloc_dl.topology_set_flags

/* Before anything else of hwloc; see dlopen_load(). */
#define hwloc_dl_load(err) dlopen_load(&hwloc_library, err)
#else
#define hwloc_dl_load(err) ((void)(err), 0) /* It is inside. */
#endif

#endif
