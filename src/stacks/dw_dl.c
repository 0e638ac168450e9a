/* dw_dl.c - see dw_dl.h. Only the reader's own process loads it: there is one thread,
 * and what is loaded goes with the process. */
#include "stacks/dw_dl.h"

#include <dlfcn.h>

#include "base/err.h"
#include "loop/dlopen.h"

struct dw_dl dw_dl;

int dw_dl_load(struct muster_error *err)
{
    void *lib = dlopen("libdw.so.1", RTLD_LAZY | RTLD_LOCAL);
    struct dw_dl got = { 0 };
    bool all = true;

    if (dw_dl.begin)
        return 0;
    if (!lib)
        return err_set(err, MUSTER_ENOTSUP,
                       "native frames need libdw of elfutils (Debian: libdw1)");
#define DW_DL_FIND(name) all = dlopen_find(lib, "dwfl_" #name, &got.name) && all;
    DW_DL(DW_DL_FIND)
#undef DW_DL_FIND
    if (!all)
        return err_set(err, MUSTER_ENOTSUP,
                       "native frames need a libdw that is not as old");
    void *cxx = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_LOCAL);
    if (!cxx || !dlopen_find(cxx, "__cxa_demangle", &got.demangle))
        got.demangle = NULL;
    dw_dl = got;
    return 0;
}
