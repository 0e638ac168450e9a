/* find_python.h - which Python runs the scripts, when PYTHON_EXEC does not say. */
#ifndef PROCESS_FIND_PYTHON_H
#define PROCESS_FIND_PYTHON_H

#include "muster/error.h"

/* Sets *path (to be freed with mem_free) to, in this order: the active virtual
 * environment's Python, the one beside this program, python3 or python on PATH.
 * MUSTER_ENOENT if there is none. self is the path of this program, or NULL to ask the
 * system. */
int python_find(char *const *envp, const char *self, char **path,
                struct muster_error *err);

/* If *path is the shim of a version manager (pyenv, asdf), a shell script that costs
 * each worker 86 ms and leaves seven variables, replaces it by the interpreter behind
 * it. Asks the manager, for a few seconds at most; whatever goes wrong leaves *path as
 * it is. Other wrappers are left alone: they are there for a reason. */
void python_behind_shim(char *const *envp, char **path);

#endif
