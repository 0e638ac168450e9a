/* signal_names.h - the names of signals, as Python has them. Pure. */
#ifndef BASE_SIGNAL_NAMES_H
#define BASE_SIGNAL_NAMES_H

#include "base/base.h"

const char *signal_name(int sig);             /* "SIGTERM"; "<N/A>" if unknown */
int signal_number(struct span name);          /* 0: there is no such signal */
const char *signal_nearest(struct span word); /* NULL: none is near */

#endif
