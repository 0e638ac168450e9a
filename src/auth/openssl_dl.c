/* openssl_dl.c - see openssl_dl.h. */
#include "auth/openssl_dl.h"

#include "base/err.h"

#ifdef MUSTER_DLOPEN

#include <dlfcn.h>
#include <pthread.h>

#include "loop/dlopen.h"

struct openssl_dl openssl_dl;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool have_crypto, have_ssl;

static void *open_library(const char *name, struct muster_error *err)
{
    void *lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);

    if (!lib)
        (void)err_set(
            err, MUSTER_ENOTSUP,
            "a job's secret needs OpenSSL 3, which cannot be loaded: %s\n"
            "Install it (Debian: libssl3), or start the job without a secret.",
            dlerror());
    return lib;
}

static int lacks(const char *name, struct muster_error *err)
{
    return err_set(err, MUSTER_ENOTSUP, "%s lacks functions: it is too old", name);
}

static int load_crypto(struct muster_error *err)
{
    void *lib = open_library("libcrypto.so.3", err);
    struct openssl_dl got = openssl_dl;
    bool all = true;

    if (!lib)
        return MUSTER_ENOTSUP;
#define FIND(name) all = dlopen_find(lib, #name, &got.name##_) && all;
    CRYPTO_FUNCTIONS(FIND)
    if (!all)
        return lacks("libcrypto.so.3", err);
    openssl_dl = got;
    have_crypto = true;
    return 0;
}

static int load_ssl(struct muster_error *err)
{
    void *lib = open_library("libssl.so.3", err);
    struct openssl_dl got = openssl_dl;
    bool all = true;

    if (!lib)
        return MUSTER_ENOTSUP;
    SSL_FUNCTIONS(FIND)
#undef FIND
    if (!all)
        return lacks("libssl.so.3", err);
    openssl_dl = got;
    have_ssl = true;
    return 0;
}

int crypto_dl_load(struct muster_error *err)
{
    pthread_mutex_lock(&lock);
    const int rc = have_crypto ? 0 : load_crypto(err);
    pthread_mutex_unlock(&lock);
    return rc;
}

int ssl_dl_load(struct muster_error *err)
{
    int rc = crypto_dl_load(err);

    pthread_mutex_lock(&lock);
    if (rc == 0 && !have_ssl)
        rc = load_ssl(err);
    pthread_mutex_unlock(&lock);
    return rc;
}

#else

int crypto_dl_load(struct muster_error *err)
{
    (void)err;
    return 0;
}

int ssl_dl_load(struct muster_error *err)
{
    (void)err;
    return 0;
}

#endif
