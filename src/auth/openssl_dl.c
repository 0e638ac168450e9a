/* openssl_dl.c - see openssl_dl.h. */
#include "auth/openssl_dl.h"

#include "loop/dlopen.h"

#ifdef MUSTER_DLOPEN

#include "base/base.h"

#define REMEDY "Install it (Debian: libssl3), or start the job without a secret."

struct openssl_dl openssl_dl;

#define SYMBOL(name) { #name, &openssl_dl.name##_ },
static const struct dlopen_symbol crypto_symbols[] = { CRYPTO_FUNCTIONS(SYMBOL) };
static const struct dlopen_symbol ssl_symbols[] = { SSL_FUNCTIONS(SYMBOL) };
#undef SYMBOL

static struct dlopen_library crypto = {
    .file = "libcrypto.so.3",
    .used = "a job's secret needs OpenSSL 3",
    .remedy = REMEDY,
    .symbols = crypto_symbols,
    .count = ARRAY_LEN(crypto_symbols),
};

static struct dlopen_library ssl = {
    .file = "libssl.so.3",
    .used = "encryption needs OpenSSL 3",
    .remedy = REMEDY,
    .symbols = ssl_symbols,
    .count = ARRAY_LEN(ssl_symbols),
};

int crypto_dl_load(struct muster_error *err)
{
    return dlopen_load(&crypto, err);
}

int ssl_dl_load(struct muster_error *err)
{
    const int rc = crypto_dl_load(err);

    return rc ? rc : dlopen_load(&ssl, err);
}

#else

DLOPEN_INSIDE(crypto_dl_load)

DLOPEN_INSIDE(ssl_dl_load)

#endif
