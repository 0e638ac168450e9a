/* curl_dl.c - see curl_dl.h. */
#include "net/curl_dl.h"

#include "base/err.h"

#ifdef MUSTER_DLOPEN

#include <dlfcn.h>
#include <pthread.h>

#include "loop/dlopen.h"

struct curl_dl curl_dl;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool loaded;

static int load(struct muster_error *err)
{
    void *lib = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        return err_set(err, MUSTER_ENOTSUP,
                       "etcd is reached through libcurl, which cannot be loaded: %s\n"
                       "Install it (Debian: libcurl4), or use the c10d backend.",
                       dlerror());
    struct curl_dl got;
    bool all = true;
#define LATE_CURL_FIND(name) all = dlopen_find(lib, "curl_" #name, &got.name) && all;
    LATE_CURL(LATE_CURL_FIND)
#undef LATE_CURL_FIND
    if (!all)
        return err_set(err, MUSTER_ENOTSUP,
                       "libcurl.so.4 lacks functions: it is too old");
    curl_dl = got;
    loaded = true; /* For good: handles may outlive whoever asked. */
    return 0;
}

int curl_dl_load(struct muster_error *err)
{
    pthread_mutex_lock(&lock);
    const int rc = loaded ? 0 : load(err);
    pthread_mutex_unlock(&lock);
    return rc;
}

const char *curl_dl_verify_text(long result)
{
    const char *(*text)(long) = NULL;
    void *lib = dlopen("libcrypto.so.3", RTLD_NOW | RTLD_NOLOAD); /* libcurl's own */

    if (lib)
        dlopen_find(lib, "X509_verify_cert_error_string", &text);
    return text ? text(result) : "the verification failed";
}

#else

#include <openssl/x509_vfy.h>

int curl_dl_load(struct muster_error *err)
{
    (void)err;
    return 0;
}

const char *curl_dl_verify_text(long result)
{
    return X509_verify_cert_error_string(result);
}

#endif
