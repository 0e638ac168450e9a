/* cmd.h - the commands of muster. Each gets argv from its own name on and returns the
 * exit code. */
#ifndef CMD_CMD_H
#define CMD_CMD_H

#include <getopt.h>
#include <stdbool.h>

#include "muster/error.h"

struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help; /* one line */
};

extern const struct command commands[]; /* a NULL name ends them */

int cmd_store(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_launch(int argc, char **argv);
int cmd_status(int argc, char **argv);
int cmd_top(int argc, char **argv);
int cmd_stacks(int argc, char **argv);
int cmd_notice(int argc, char **argv);
int cmd_report(int argc, char **argv);
int cmd_completion(int argc, char **argv);
struct launch_config;
struct options;
/* Prints options and configuration as JSON: --print-config. */
int print_config(const struct options *o, const struct launch_config *c, bool launch,
                 struct muster_error *err);
int cmd_man(void); /* prints the options for the manual page of run */

/* Prints an error as all commands do: first the remedies (the lines of the text after
 * its first), then "<prog>: error: <first line>", so that the last line says what is
 * wrong. */
void cmd_error(const char *prog, const struct muster_error *err);

/* Makes the error for a word that getopt_long() refused: c is what that returned (':'
 * or '?'). Returns MUSTER_EINVAL; the text names the option that was probably meant. */
int cmd_bad_option(int c, const char *word, const struct option *options,
                   const char *prog, struct muster_error *err);

#endif
