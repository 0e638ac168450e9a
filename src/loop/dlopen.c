/* dlopen.c - see dlopen.h. */
#include "loop/dlopen.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "base/err.h"

/* Libraries that the program itself has inside, symbol by symbol, up to one without a
 * name. The wheel's command has this (packaging/command.c), no other program does. */
extern const struct dlopen_symbol muster_inside[]
    __attribute__((weak, visibility("default")));

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int dlopen_fail(const struct dlopen_library *l, const char *why,
                       struct muster_error *err)
{
    return err_set(err, MUSTER_ENOTSUP, "%s, which cannot be loaded: %s\n%s", l->used,
                   why, l->remedy);
}

static void *find_inside(const char *name)
{
    const struct dlopen_symbol *s = muster_inside;

    while (s && s->name && strcmp(s->name, name) != 0)
        s++;
    return s ? s->to : NULL;
}

static int load(struct dlopen_library *l, struct muster_error *err)
{
    const bool inside = find_inside(l->symbols[0].name) != NULL;
    const int scope = l->global ? RTLD_GLOBAL : RTLD_LOCAL;
    void *lib = inside ? NULL : dlopen(l->file, RTLD_NOW | scope);

    if (!lib && !inside)
        return dlopen_fail(l, dlerror(), err);
    for (size_t i = 0; i < l->count; i++) {
        const char *name = l->symbols[i].name;
        void *p = inside ? find_inside(name) : dlsym(lib, name);

        if (!p)
            return dlopen_fail(l, dlerror(), err); /* It is too old for this symbol. */
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
