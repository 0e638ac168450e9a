/* locked_file.h - the file of a FileStore. As in torch, each operation opens it, locks
 * it, reads it to its end, appends to it and closes it. Nothing here waits: if another
 * process holds the lock, the caller is told and tries again later. */
#ifndef STORE_LOCKED_FILE_H
#define STORE_LOCKED_FILE_H

#include <sys/types.h>

#include "store/core/filelog.h"

struct locked_file {
    char *path;         /* owned */
    struct filelog log; /* the contents of the file up to pos */
    uint64_t pos;
    dev_t dev; /* which file it is, since it may be removed and made again */
    ino_t ino;
    int held; /* that file, kept open so that its inode is not reused; -1: none yet */
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

/* 0: it is locked until locked_file_unlock(), and l->log is up to date.
 * LOCKED_FILE_BUSY: another process has the lock. MUSTER_ENOENT: there is no such file.
 * MUSTER_ESTATE: its last record is cut off. Also MUSTER_EACCES, MUSTER_EIO,
 * MUSTER_ENOMEM. */
int locked_file_lock(struct locked_file *l, enum locked_file_mode mode,
                     struct muster_error *err);
void locked_file_unlock(struct locked_file *l);

/* Under an exclusive lock: appends all the records, or none of them. */
int locked_file_append(struct locked_file *l, struct span records,
                       struct muster_error *err);

/* Under an exclusive lock. */
void locked_file_remove(struct locked_file *l);

/* Whether other machines may write it without inotify noticing. */
bool locked_file_is_remote(const struct locked_file *l);

#endif
