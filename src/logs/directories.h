/* directories.h - the directories that worker_logs.c keeps its files in: made, named,
 * set aside. Blocking calls on the local file system, as torchrun makes them. */
#ifndef LOGS_DIRECTORIES_H
#define LOGS_DIRECTORIES_H

#include "muster/error.h"

/* errno, for the user: what could not be done, and the flag that helps. */
int log_dirs_error(struct muster_error *err, const char *what, const char *path);

/* With all parents that are missing, as Python's makedirs. */
int log_dirs_make(const char *path, struct muster_error *err);

/* A new directory <stem><8 random characters>, only for us, as mkdtemp. NULL: err. The
 * caller frees the path. */
char *log_dirs_unique(const char *stem, struct muster_error *err);

/* Python's temporary directory: the first that can be written to. Borrowed. */
const char *log_dirs_temp(char *const *envp);

/* A new, empty directory at <run>/<name>. What is there already moves to
 * <run>/earlier/<name>.<n> if it holds anything; else it goes. *moved_to, if not NULL,
 * is set to the new place or to NULL, and is the caller's to free. */
int log_dirs_renew(const char *run, const char *name, char **moved_to,
                   struct muster_error *err);

/* Removes <run>/<name> and <run>/earlier/<name>.<n>, with all that is in them. */
void log_dirs_forget(const char *run, const char *name);

#endif
