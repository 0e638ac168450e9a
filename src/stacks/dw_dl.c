/* dw_dl.c - see dw_dl.h. Only the reader's own process loads it: what is loaded goes
 * with the process. */
#include "stacks/dw_dl.h"

#include "base/base.h"
#include "loop/dlopen.h"

struct dw_dl dw_dl;

static const struct dlopen_symbol symbols[] = {
#define SYMBOL(name) { "dwfl_" #name, &dw_dl.name },
    DW_DL(SYMBOL)
#undef SYMBOL
};

static const struct dlopen_symbol demangle[] = {
    { "__cxa_demangle", &dw_dl.demangle },
};

static struct dlopen_library library = {
    .file = "libdw.so.1",
    .used = "native frames need libdw of elfutils",
    .remedy = "Install it (Debian: libdw1).",
    .symbols = symbols,
    .count = ARRAY_LEN(symbols),
};

static struct dlopen_library cxx = {
    .file = "libstdc++.so.6",
    .symbols = demangle,
    .count = ARRAY_LEN(demangle),
};

int dw_dl_load(struct muster_error *err)
{
    const int rc = dlopen_load(&library, err);

    if (rc == 0)
        (void)dlopen_load(&cxx, NULL); /* Without it names stay as they are. */
    return rc;
}
