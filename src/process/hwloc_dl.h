/* hwloc_dl.h - hwloc, loaded when a job asks for --numa-binding; see loop/dlopen.h.
 *
 * Callers write the names that hwloc's manual has; of its inline functions only those
 * that call no other. */
#ifndef PROCESS_HWLOC_DL_H
#define PROCESS_HWLOC_DL_H

#include <hwloc.h>

#include "muster/error.h"

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

struct hwloc_dl {
#define HWLOC_DL_MEMBER(name) __typeof__(&hwloc_##name) name;
    HWLOC_DL(HWLOC_DL_MEMBER)
#undef HWLOC_DL_MEMBER
};

extern struct hwloc_dl hwloc_dl;

#define hwloc_bitmap_first        hwloc_dl.bitmap_first
#define hwloc_get_nbobjs_by_depth hwloc_dl.get_nbobjs_by_depth
#define hwloc_get_obj_by_depth    hwloc_dl.get_obj_by_depth
#define hwloc_get_type_depth      hwloc_dl.get_type_depth
#define hwloc_obj_type_is_dcache  hwloc_dl.obj_type_is_dcache
#define hwloc_topology_destroy    hwloc_dl.topology_destroy
#define hwloc_topology_init       hwloc_dl.topology_init
#define hwloc_topology_load       hwloc_dl.topology_load
#define hwloc_topology_set_flags  hwloc_dl.topology_set_flags

#endif

/* Before anything else of hwloc. MUSTER_ENOTSUP: it is not installed. Cheap once it has
 * succeeded; safe from several threads. */
int hwloc_dl_load(struct muster_error *err);

#endif
