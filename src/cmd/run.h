/* run.h - what the files of `muster run` share. */
#ifndef CMD_RUN_H
#define CMD_RUN_H

#include "cmd/cmd.h"
#include "launch/core/derive.h"
#include "launch/core/options.h"
#include "launch/core/worker_env.h"
#include "logs/log_writer.h"

/* Prints options and configuration as JSON. */
int print_config(const struct options *o, const struct launch_config *c, bool launch,
                 struct muster_error *err);

/* Runs the agent to its end and prints on stderr how it ended. Returns 0 with
 * *exit_code set, or an error if the agent could not begin. error_file is where our
 * parent process looks for our error, or NULL. */
int run_agent(const char *prog, const struct launch_config *c,
              const struct log_writer *log, const char *error_file, int *exit_code,
              struct muster_error *err);

#endif
