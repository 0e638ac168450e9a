/* locked_file.h - the file of a FileStore: opened anew, locked, read up to its end,
 * appended to, let go, for each operation, as torch does. Nothing here waits: a lock
 * that another process holds is reported, and the caller tries again later. */
#ifndef STORE_LOCKED_FILE_H
#define STORE_LOCKED_FILE_H

#include <sys/types.h>

#include "store/core/filelog.h"

struct locked_file {
    char *path;         /* owned */
    struct filelog log; /* what the file says, up to pos */
    uint64_t pos;
    dev_t dev; /* which file that was: it may be removed and made anew */
    ino_t ino;
    int held; /* that file, kept so that no other gets its number; -1: none yet */
    int fd;   /* -1 unless locked */
};

enum locked_file_mode {
    LOCKED_FILE_READ,   /* shared lock */
    LOCKED_FILE_CHANGE, /* exclusive lock, of a file that exists */
    LOCKED_FILE_WRITE,  /* exclusive lock, the file is made if need be */
};

int locked_file_init(struct locked_file *l, const char *path, uint64_t seed,
                     struct muster_error *err);
void locked_file_fini(struct locked_file *l);

#define LOCKED_FILE_BUSY 1

/* 0: locked, and l->log is what the file says now; to be unlocked. LOCKED_FILE_BUSY:
 * somebody else has the lock. MUSTER_ENOENT: no such file. MUSTER_ESTATE: its end is
 * cut off. MUSTER_EACCES, MUSTER_EIO, MUSTER_ENOMEM. */
int locked_file_lock(struct locked_file *l, enum locked_file_mode mode,
                     struct muster_error *err);
void locked_file_unlock(struct locked_file *l);

/* Under an exclusive lock: all the records, or none of them. */
int locked_file_append(struct locked_file *l, struct span records,
                       struct muster_error *err);

/* Under an exclusive lock. */
void locked_file_remove(struct locked_file *l);

/* Whether other hosts may write it unseen by inotify. */
bool locked_file_is_remote(const struct locked_file *l);

#endif
