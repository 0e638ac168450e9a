/* dlopen.c - see dlopen.h. */
#include "loop/dlopen.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "base/err.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int fail(const struct dlopen_library *l, const char *why,
                struct muster_error *err)
{
    return err_set(err, MUSTER_ENOTSUP, "%s, which cannot be loaded: %s\n%s", l->used,
                   why, l->remedy);
}

static int load(struct dlopen_library *l, struct muster_error *err)
{
    void *lib = dlopen(l->file, RTLD_NOW | (l->global ? RTLD_GLOBAL : RTLD_LOCAL));

    if (!lib)
        return fail(l, dlerror(), err);
    for (size_t i = 0; i < l->count; i++) {
        void *p = dlsym(lib, l->symbols[i].name);

        if (!p)
            return fail(l, dlerror(), err);     /* It is too old for this symbol. */
        memcpy(l->symbols[i].to, &p, sizeof p); /* ISO C has no cast to a function. */
    }
    l->loaded = true;
    return 0;
}

int dlopen_load(struct dlopen_library *l, struct muster_error *err)
{
    pthread_mutex_lock(&lock);
    const int rc = l->loaded ? 0 : load(l, err);
    pthread_mutex_unlock(&lock);
    return rc;
}
