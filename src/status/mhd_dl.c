/* mhd_dl.c - see mhd_dl.h. */
#include "status/mhd_dl.h"

#include "base/err.h"

#ifdef MUSTER_DLOPEN_VIEWS

#include <dlfcn.h>
#include <pthread.h>

#include "loop/dlopen.h"

struct mhd_dl mhd_dl;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool loaded;

static int load(struct muster_error *err)
{
    void *lib = dlopen("libmicrohttpd.so.12", RTLD_NOW | RTLD_LOCAL);
    struct mhd_dl got;
    bool all = true;

    if (!lib)
        return err_set(err, MUSTER_ENOTSUP,
                       "the page is served by libmicrohttpd, which cannot be loaded: "
                       "%s\nInstall it (Debian: libmicrohttpd12).",
                       dlerror());
#define LATE_MHD_FIND(name) all = dlopen_find(lib, "MHD_" #name, &got.name) && all;
    LATE_MHD(LATE_MHD_FIND)
#undef LATE_MHD_FIND
    if (!all)
        return err_set(err, MUSTER_ENOTSUP,
                       "libmicrohttpd.so.12 lacks functions: it is too old");
    mhd_dl = got;
    loaded = true;
    return 0;
}

int mhd_dl_load(struct muster_error *err)
{
    pthread_mutex_lock(&lock);
    const int rc = loaded ? 0 : load(err);
    pthread_mutex_unlock(&lock);
    return rc;
}

#else

int mhd_dl_load(struct muster_error *err)
{
    (void)err;
    return 0;
}

#endif
