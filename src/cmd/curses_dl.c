/* curses_dl.c - see curses_dl.h. */
#define CURSES_DL_PLAIN
#include "cmd/curses_dl.h"

#include "loop/dlopen.h"

#ifdef MUSTER_DLOPEN_VIEWS

#include "base/base.h"

struct curses_dl curses_dl;

static const struct dlopen_symbol symbols[] = {
#define SYMBOL(name) { #name, &curses_dl.name },
    CURSES_DL(SYMBOL)
#undef SYMBOL
        { "stdscr", &curses_dl.screen },
};

static struct dlopen_library library = {
    .file = "libncursesw.so.6",
    .used = "top draws with ncurses",
    .remedy = "Install it (Debian: libncursesw6), or use `muster status --watch`.",
    .symbols = symbols,
    .count = ARRAY_LEN(symbols),
    .global = true,
};

int curses_dl_load(struct muster_error *err)
{
    return dlopen_load(&library, err);
}

WINDOW *curses_screen(void)
{
    return *curses_dl.screen;
}

#else

DLOPEN_INSIDE(curses_dl_load)

WINDOW *curses_screen(void)
{
    return stdscr;
}

#endif
