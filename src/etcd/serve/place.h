/* place.h - what a member of the job's own etcd cluster needs on its machine: the
 * program, and a private directory that is removed when the job ends. */
#ifndef ETCD_SERVE_PLACE_H
#define ETCD_SERVE_PLACE_H

/* Finds etcd on PATH, or the one that muster-run[etcd] has installed among Python's
 * packages. The caller frees the name. NULL if there is none. */
char *place_find_etcd(char *const *envp);

/* Makes a directory that only this user can read; the caller frees the name. *lock is a
 * descriptor to be kept open while the directory is in use: an agent that makes a
 * directory removes those whose lock is free. NULL if it cannot be made anywhere. */
char *place_make(char *const *envp, int *lock);

void place_remove(const char *dir); /* with everything in it */

/* Removes the directories below `place` that killed agents of this user have left. A
 * living agent holds the lock of its directory. For place_make, and for tests. */
void place_sweep(const char *place);

#endif
