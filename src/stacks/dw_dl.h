/* dw_dl.h - libdw of elfutils, which unwinds native stacks, loaded by the reader of
 * stacks alone; see loop/dlopen.h. */
#ifndef STACKS_DW_DL_H
#define STACKS_DW_DL_H

#include <elfutils/libdwfl.h>

#include "muster/error.h"

#define DW_DL(X)                                                                       \
    X(addrmodule)                                                                      \
    X(attach_state)                                                                    \
    X(begin)                                                                           \
    X(end)                                                                             \
    X(errmsg)                                                                          \
    X(frame_pc)                                                                        \
    X(getthread_frames)                                                                \
    X(linux_proc_find_elf)                                                             \
    X(linux_proc_report)                                                               \
    X(module_addrinfo)                                                                 \
    X(module_info)                                                                     \
    X(report_end)                                                                      \
    X(thread_state_register_pc)                                                        \
    X(thread_state_registers)

struct dw_dl {
#define DW_DL_MEMBER(name) __typeof__(&dwfl_##name) name;
    DW_DL(DW_DL_MEMBER)
#undef DW_DL_MEMBER
    /* Of the C++ library; NULL if there is none: then names stay as they are. */
    char *(*demangle)(const char *name, char *out, size_t *size, int *status);
};

extern struct dw_dl dw_dl;

/* Before anything else of it. MUSTER_ENOTSUP: it is not installed. */
int dw_dl_load(struct muster_error *err);

#endif
