/* curses_dl.c - see curses_dl.h. */
#define CURSES_DL_PLAIN
#include "cmd/curses_dl.h"

#include "base/err.h"

#ifdef MUSTER_DLOPEN_VIEWS

#include <dlfcn.h>

#include "loop/dlopen.h"

struct curses_dl curses_dl;

int curses_dl_load(struct muster_error *err)
{
    void *lib = dlopen("libncursesw.so.6", RTLD_NOW | RTLD_GLOBAL);
    bool all = true;

    if (!lib)
        return err_set(err, MUSTER_ENOTSUP,
                       "top draws with ncurses, which cannot be loaded: %s\n"
                       "Install it (Debian: libncursesw6), or use `muster status "
                       "--watch`.",
                       dlerror());
#define LATE_CURSES_FIND(name) all = dlopen_find(lib, #name, &curses_dl.name) && all;
    LATE_CURSES(LATE_CURSES_FIND)
#undef LATE_CURSES_FIND
    curses_dl.screen = dlsym(lib, "stdscr");
    return all && curses_dl.screen
               ? 0
               : err_set(err, MUSTER_ENOTSUP, "libncursesw.so.6 lacks functions");
}

WINDOW *curses_screen(void)
{
    return *curses_dl.screen;
}

#else

int curses_dl_load(struct muster_error *err)
{
    (void)err;
    return 0;
}

WINDOW *curses_screen(void)
{
    return stdscr;
}

#endif
