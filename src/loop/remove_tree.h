/* remove_tree.h - removes a directory with everything in it, in a place that others may
 * write to. Blocking calls on the local file system. */
#ifndef LOOP_REMOVE_TREE_H
#define LOOP_REMOVE_TREE_H

#include <stdbool.h>

/* Opens a directory below the directory `at` (or AT_FDCWD), unless it is a symbolic
 * link or belongs to another user. Returns a descriptor or -1. */
int open_own_dir(int at, const char *name);

/* Removes `name` below the directory `at`, whatever it is. No symbolic link is
 * followed, and a directory of another user stays as it is: whoever can write to the
 * place could otherwise have us remove what is ours elsewhere. Returns whether it is
 * gone. */
bool remove_tree(int at, const char *name);

/* Likewise, but only directories, as far as they are empty. */
bool remove_empty_dirs(int at, const char *name);

#endif
