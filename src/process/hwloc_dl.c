/* hwloc_dl.c - see hwloc_dl.h. */
#include "process/hwloc_dl.h"

#ifdef MUSTER_DLOPEN

#include <dlfcn.h>
#include <pthread.h>

#include "base/err.h"
#include "loop/dlopen.h"

struct hwloc_dl hwloc_dl;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool loaded;

static int load(struct muster_error *err)
{
    void *lib = dlopen("libhwloc.so.15", RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        return err_set(err, MUSTER_ENOTSUP,
                       "Failed to apply NUMA binding: hwloc tells the machine's shape, "
                       "and it cannot be loaded: %s\n"
                       "Install it (Debian: libhwloc15), or leave --numa-binding away.",
                       dlerror());
    struct hwloc_dl got;
    bool all = true;
#define HWLOC_DL_FIND(name) all = dlopen_find(lib, "hwloc_" #name, &got.name) && all;
    HWLOC_DL(HWLOC_DL_FIND)
#undef HWLOC_DL_FIND
    if (!all)
        return err_set(err, MUSTER_ENOTSUP,
                       "Failed to apply NUMA binding: libhwloc.so.15 lacks functions: "
                       "it is too old");
    hwloc_dl = got;
    loaded = true;
    return 0;
}

int hwloc_dl_load(struct muster_error *err)
{
    pthread_mutex_lock(&lock);
    const int rc = loaded ? 0 : load(err);
    pthread_mutex_unlock(&lock);
    return rc;
}

#else

int hwloc_dl_load(struct muster_error *err)
{
    (void)err;
    return 0;
}

#endif
