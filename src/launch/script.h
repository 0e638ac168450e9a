/* script.h - whether the script can be run at all. This is checked before anything is
 * started; otherwise every worker of every node would report the same mistake. */
#ifndef LAUNCH_SCRIPT_H
#define LAUNCH_SCRIPT_H

#include "launch/core/config.h"

/* 0, or MUSTER_EINVAL with the reason and the remedy if a Python script does not exist,
 * cannot be read, or is a program of another kind. Modules, names with macros, and
 * scripts for an interpreter that the user chose are not checked. */
int script_check(const struct launch_config *c, struct muster_error *err);

#endif
