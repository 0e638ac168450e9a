/* curses_dl.h - ncurses, loaded when `muster top` starts; see loop/dlopen.h. Callers
 * use the function names of its manual. */
#ifndef CMD_CURSES_DL_H
#define CMD_CURSES_DL_H

#define NCURSES_NOMACROS 1
#include <curses.h>

#include "muster/error.h"

#ifdef MUSTER_DLOPEN_VIEWS

#define CURSES_DL(X)                                                                   \
    X(cbreak)                                                                          \
    X(curs_set)                                                                        \
    X(endwin)                                                                          \
    X(getmaxx)                                                                         \
    X(getmaxy)                                                                         \
    X(has_colors)                                                                      \
    X(init_pair)                                                                       \
    X(keypad)                                                                          \
    X(newterm)                                                                         \
    X(noecho)                                                                          \
    X(start_color)                                                                     \
    X(use_default_colors)                                                              \
    X(waddnstr)                                                                        \
    X(wattr_off)                                                                       \
    X(wattr_on)                                                                        \
    X(wclrtobot)                                                                       \
    X(wclrtoeol)                                                                       \
    X(wgetch)                                                                          \
    X(wmove)                                                                           \
    X(wrefresh)                                                                        \
    X(wtimeout)

struct curses_dl {
#define CURSES_DL_MEMBER(name) __typeof__(&name) name;
    CURSES_DL(CURSES_DL_MEMBER)
#undef CURSES_DL_MEMBER
    WINDOW **screen;
};

extern struct curses_dl curses_dl;

#ifndef CURSES_DL_PLAIN /* curses_dl.c and packaging/command.c need the names */

#define cbreak             curses_dl.cbreak
#define curs_set           curses_dl.curs_set
#define endwin             curses_dl.endwin
#define getmaxx            curses_dl.getmaxx
#define getmaxy            curses_dl.getmaxy
#define has_colors         curses_dl.has_colors
#define init_pair          curses_dl.init_pair
#define keypad             curses_dl.keypad
#define newterm            curses_dl.newterm
#define noecho             curses_dl.noecho
#define start_color        curses_dl.start_color
#define use_default_colors curses_dl.use_default_colors
#define waddnstr           curses_dl.waddnstr
#define wattr_off          curses_dl.wattr_off
#define wattr_on           curses_dl.wattr_on
#define wclrtobot          curses_dl.wclrtobot
#define wclrtoeol          curses_dl.wclrtoeol
#define wgetch             curses_dl.wgetch
#define wmove              curses_dl.wmove
#define wrefresh           curses_dl.wrefresh
#define wtimeout           curses_dl.wtimeout
#endif

#endif

/* Must be called before any function of ncurses. MUSTER_ENOTSUP if it is not
 * installed. */
int curses_dl_load(struct muster_error *err);
WINDOW *curses_screen(void); /* stdscr, after newterm() */

#endif
