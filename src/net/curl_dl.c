/* curl_dl.c - see curl_dl.h. */
#include "net/curl_dl.h"

#include "loop/dlopen.h"

#ifdef MUSTER_DLOPEN

#include <dlfcn.h>
#include <string.h>

#include "base/base.h"

struct curl_dl curl_dl;

static const struct dlopen_symbol symbols[] = {
#define SYMBOL(name) { "curl_" #name, &curl_dl.name },
    CURL_DL(SYMBOL)
#undef SYMBOL
};

static struct dlopen_library library = {
    .file = "libcurl.so.4",
    .used = "etcd is reached through libcurl",
    .remedy = "Install it (Debian: libcurl4), or use the c10d backend.",
    .symbols = symbols,
    .count = ARRAY_LEN(symbols),
};

int curl_dl_load(struct muster_error *err)
{
    return dlopen_load(&library, err);
}

const char *curl_dl_verify_text(long result)
{
    void *lib =
        dlopen("libcrypto.so.3", RTLD_NOW | RTLD_NOLOAD); /* libcurl loaded it */
    void *p = lib ? dlsym(lib, "X509_verify_cert_error_string") : NULL;
    const char *(*text)(long);

    memcpy(&text, &p, sizeof p);
    return text ? text(result) : "the verification failed";
}

#else

#include <openssl/x509_vfy.h>

DLOPEN_INSIDE(curl_dl_load)

const char *curl_dl_verify_text(long result)
{
    return X509_verify_cert_error_string(result);
}

#endif
