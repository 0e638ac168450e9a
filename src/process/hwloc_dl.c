/* hwloc_dl.c - see hwloc_dl.h. */
#include "process/hwloc_dl.h"

#include "loop/dlopen.h"

#ifdef MUSTER_DLOPEN

#include "base/base.h"

struct hwloc_dl hwloc_dl;

static const struct dlopen_symbol symbols[] = {
#define SYMBOL(name) { "hwloc_" #name, &hwloc_dl.name },
    HWLOC_DL(SYMBOL)
#undef SYMBOL
};

static struct dlopen_library library = {
    .file = "libhwloc.so.15",
    .used = "Failed to apply NUMA binding: it needs hwloc, which reads the machine's "
            "topology",
    .remedy = "Install it (Debian: libhwloc15), or leave out --numa-binding.",
    .symbols = symbols,
    .count = ARRAY_LEN(symbols),
};

int hwloc_dl_load(struct muster_error *err)
{
    return dlopen_load(&library, err);
}

#else

DLOPEN_INSIDE(hwloc_dl_load)

#endif
