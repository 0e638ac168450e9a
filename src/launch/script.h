/* script.h - whether the script can be run at all: asked before anything is started, as
 * every worker of every node would say it otherwise, each in its own words. */
#ifndef LAUNCH_SCRIPT_H
#define LAUNCH_SCRIPT_H

#include "launch/core/config.h"

/* 0, or MUSTER_EINVAL with the reason and the remedy: a Python script that does not
 * exist, cannot be read, or is a program of another kind. What only an interpreter can
 * tell is left to it: modules, an interpreter of the user's own, names with macros. */
int script_check(const struct launch_config *c, struct muster_error *err);

#endif
