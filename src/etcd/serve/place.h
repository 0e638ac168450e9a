/* place.h - what a member of the job's own etcd cluster needs of its machine: the
 * program, and a private directory that is gone when the job is. */
#ifndef ETCD_SERVE_PLACE_H
#define ETCD_SERVE_PLACE_H

/* On PATH, or what muster-run[etcd] has brought into Python's packages; the caller
 * frees it. NULL: there is none. */
char *place_find_etcd(char *const *envp);

/* A new directory for this user alone; the caller frees the name. *lock is a descriptor
 * that is held while the directory is in use: the next agent that makes one removes
 * those whose lock is free. NULL: it cannot be made anywhere. */
char *place_make(char *const *envp, int *lock);

void place_remove(const char *dir); /* and all that is in it */

#endif
