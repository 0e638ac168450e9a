/* completion.h - completion scripts for shells. Pure: they go into a buffer. */
#ifndef LAUNCH_CORE_COMPLETION_H
#define LAUNCH_CORE_COMPLETION_H

#include "launch/core/options.h"

#define COMPLETION_SHELLS "bash|zsh|fish|tcsh"

/* A script for the commands muster and torchrun. commands are muster's own, with blanks
 * between. 0, MUSTER_ENOMEM, or MUSTER_EINVAL if the shell is none of the above. */
int completion_script(struct buf *out, const char *shell, const char *commands);

#endif
