/* dlopen.c - see dlopen.h. */
#include "loop/dlopen.h"

#include <dlfcn.h>
#include <string.h>

bool dlopen_find(void *lib, const char *name, void *to)
{
    void *p = dlsym(lib, name);

    memcpy(to, &p, sizeof p); /* ISO C has no cast from void * to a function. */
    return p != NULL;
}
