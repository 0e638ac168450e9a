/* dw_dl.h - libdw of elfutils, which unwinds native stacks, loaded by the reader of
 * stacks alone, in its own process: what is loaded goes with that. For native.c; see
 * loop/dlopen.h. */
#ifndef STACKS_DW_DL_H
#define STACKS_DW_DL_H

#include <elfutils/libdwfl.h>

#include "base/base.h"
#include "loop/dlopen.h"

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

static struct {
#define MEMBER(name) __typeof__(&dwfl_##name) name;
    DW_DL(MEMBER)
#undef MEMBER
    /* Of the C++ library; NULL if there is none: then names stay as they are. */
    char *(*demangle)(const char *name, char *out, size_t *size, int *status);
} dw_dl;

static const struct dlopen_symbol dw_symbols[] = {
#define SYMBOL(name) { "dwfl_" #name, &dw_dl.name },
    DW_DL(SYMBOL)
#undef SYMBOL
};

static const struct dlopen_symbol demangle_symbol = { "__cxa_demangle",
                                                      &dw_dl.demangle };

static struct dlopen_library dw_library = {
    .file = "libdw.so.1",
    .used = "native frames need libdw of elfutils",
    .remedy = "Install it (Debian: libdw1).",
    .symbols = dw_symbols,
    .count = ARRAY_LEN(dw_symbols),
};

static struct dlopen_library cxx_library = {
    .file = "libstdc++.so.6",
    .symbols = &demangle_symbol,
    .count = 1,
};

/* Before anything else of it. MUSTER_ENOTSUP: it is not installed. */
static int dw_dl_load(struct muster_error *err)
{
    const int rc = dlopen_load(&dw_library, err);

    if (rc == 0)
        (void)dlopen_load(&cxx_library, NULL); /* Without it names stay as they are. */
    return rc;
}

#endif
