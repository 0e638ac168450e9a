/* command.c - the muster command of a bundle: all of it is in libmuster.so beside it,
 * but for libmicrohttpd and ncurses, which are in here. Debian's archives of those fit
 * into a program and not into a shared library. */
#include "muster/error.h"

MUSTER_API int muster_main(int argc, char **argv);

#ifdef MUSTER_VIEWS_INSIDE

#define CURSES_DL_PLAIN
#define MHD_DL_PLAIN
#include "cmd/curses_dl.h"
#include "loop/dlopen.h"
#include "status/mhd_dl.h"

/* src/loop/dlopen.c looks here first. */
MUSTER_API extern const struct dlopen_symbol muster_inside[];
const struct dlopen_symbol muster_inside[] = {
#define SYMBOL(name) { #name, (void *)name },
    CURSES_DL(SYMBOL)
#undef SYMBOL
        { "stdscr", (void *)&stdscr },
#define SYMBOL(name) { "MHD_" #name, (void *)MHD_##name },
    MHD_DL(SYMBOL)
#undef SYMBOL
        { 0 },
};

#endif

int main(int argc, char **argv)
{
    return muster_main(argc, argv);
}
