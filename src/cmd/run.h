/* run.h - what the files of `muster run` share. */
#ifndef CMD_RUN_H
#define CMD_RUN_H

#include "cmd/cmd.h"
#include "group/derive.h"
#include "group/options.h"
#include "group/worker.h"

/* Prints options and configuration as JSON. */
int print_config(const struct options *o, const struct launch_config *c, bool launch,
                 struct muster_error *err);

#endif
