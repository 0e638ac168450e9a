/* mhd_dl.c - see mhd_dl.h. */
#include "status/mhd_dl.h"

#include "loop/dlopen.h"

#ifdef MUSTER_DLOPEN_VIEWS

#include "base/base.h"

struct mhd_dl mhd_dl;

static const struct dlopen_symbol symbols[] = {
#define SYMBOL(name) { "MHD_" #name, &mhd_dl.name },
    MHD_DL(SYMBOL)
#undef SYMBOL
};

static struct dlopen_library library = {
    .file = "libmicrohttpd.so.12",
    .used = "the page is served by libmicrohttpd",
    .remedy = "Install it (Debian: libmicrohttpd12).",
    .symbols = symbols,
    .count = ARRAY_LEN(symbols),
};

int mhd_dl_load(struct muster_error *err)
{
    return dlopen_load(&library, err);
}

#else

DLOPEN_INSIDE(mhd_dl_load)

#endif
