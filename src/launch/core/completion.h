/* completion.h - completion scripts for shells. Pure: they go into a buffer. */
#ifndef LAUNCH_CORE_COMPLETION_H
#define LAUNCH_CORE_COMPLETION_H

#include "launch/core/options.h"

#define COMPLETION_SHELLS "bash|zsh|fish|tcsh"

/* Appends a script that completes the commands muster and torchrun. commands has the
 * names of muster's subcommands, separated by blanks. 0, MUSTER_ENOMEM, or
 * MUSTER_EINVAL if the shell is not one of the above. */
int completion_script(struct buf *out, const char *shell, const char *commands);

#endif
