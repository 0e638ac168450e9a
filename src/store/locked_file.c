/* locked_file.c - the file of a FileStore; see locked_file.h. */
#include "store/locked_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"

#define READ_ROOM ((size_t)65536)

int locked_file_init(struct locked_file *l, const char *path, uint64_t seed,
                     struct muster_error *err)
{
    *l = (struct locked_file){ .held = -1, .fd = -1, .path = mem_strdup(path) };
    filelog_init(&l->log, seed);
    return l->path ? 0 : err_nomem(err);
}

void locked_file_fini(struct locked_file *l)
{
    locked_file_unlock(l);
    if (l->held >= 0)
        (void)close(l->held);
    filelog_fini(&l->log);
    mem_free(l->path);
    l->path = NULL;
}

static int sys_error(const struct locked_file *l, const char *doing, int sys,
                     struct muster_error *err)
{
    const int code = sys == ENOENT                                   ? MUSTER_ENOENT
                     : sys == EACCES || sys == EPERM || sys == EROFS ? MUSTER_EACCES
                     : sys == ENOMEM                                 ? MUSTER_ENOMEM
                                                                     : MUSTER_EIO;

    return err_set(err, code, "file://%s: %s: %s", l->path, doing, strerror(sys));
}

/* Opens and locks the file. If it was removed before we had the lock, it tries again
 * with the file that the path names then. */
static int locked_file_open(struct locked_file *l, enum locked_file_mode mode,
                            struct stat *st, struct muster_error *err)
{
    const int flags[] = { [LOCKED_FILE_READ] = O_RDONLY | O_CLOEXEC,
                          [LOCKED_FILE_CHANGE] = O_RDWR | O_CLOEXEC,
                          [LOCKED_FILE_WRITE] = O_RDWR | O_CREAT | O_CLOEXEC };

    for (int tries = 0; tries < 10; tries++) {
        const int fd = open(l->path, flags[mode], 0644);

        if (fd < 0)
            return sys_error(l, "open", errno, err);
        if (flock(fd, (mode == LOCKED_FILE_READ ? LOCK_SH : LOCK_EX) | LOCK_NB) < 0) {
            const int sys = errno;

            (void)close(fd);
            return sys == EWOULDBLOCK || sys == EINTR ? LOCKED_FILE_BUSY
                                                      : sys_error(l, "flock", sys, err);
        }
        if (fstat(fd, st) == 0 && st->st_nlink > 0) {
            l->fd = fd;
            return 0;
        }
        (void)close(fd);
    }
    return LOCKED_FILE_BUSY;
}

static int locked_file_cut_off(const struct locked_file *l, size_t rest,
                               struct muster_error *err)
{
    return err_set(
        err, MUSTER_ESTATE,
        "file://%s: its last record, at byte %" PRIu64
        ", is cut off after %zu bytes: a process was killed while it wrote, or "
        "the disk is full. Cut the file to %" PRIu64
        " bytes (truncate -s), or remove it and start all processes anew",
        l->path, l->pos, rest, l->pos);
}

/* Reads what others have appended since we last read. */
static int locked_file_catch_up(struct locked_file *l, struct muster_error *err)
{
    struct buf in;
    ssize_t n = 1;
    int rc = 0;

    buf_init(&in, SIZE_MAX);
    while (n > 0 && rc == 0) {
        uint8_t *room = buf_room(&in, READ_ROOM);
        size_t used;

        if (!room) {
            rc = err_nomem(err);
            break;
        }
        n = pread(l->fd, room, READ_ROOM, (off_t)(l->pos + buf_len(&in)));
        if (n < 0) {
            rc = errno == EINTR ? 0 : sys_error(l, "read", errno, err);
            n = rc == 0;
            continue;
        }
        buf_commit(&in, (size_t)n);
        rc = filelog_feed(&l->log, buf_data(&in), buf_len(&in), &used);
        buf_consume(&in, used);
        l->pos += used;
        if (rc < 0)
            (void)err_nomem(err);
    }
    if (rc == 0 && buf_len(&in))
        rc = locked_file_cut_off(l, buf_len(&in), err);
    buf_fini(&in);
    return rc;
}

/* The path names another file than before: forget what we knew of the old one. */
static int locked_file_begin(struct locked_file *l, const struct stat *st,
                             struct muster_error *err)
{
    const int fd = open(l->path, O_PATH | O_CLOEXEC);
    struct stat same;

    if (fd < 0)
        return errno == ENOENT ? LOCKED_FILE_BUSY : sys_error(l, "open", errno, err);
    if (fstat(fd, &same) < 0 || same.st_ino != st->st_ino ||
        same.st_dev != st->st_dev) {
        (void)close(fd); /* It was replaced just now. */
        return LOCKED_FILE_BUSY;
    }
    if (l->held >= 0)
        (void)close(l->held);
    l->held = fd;
    l->dev = st->st_dev;
    l->ino = st->st_ino;
    l->pos = 0;
    filelog_clear(&l->log);
    return 0;
}

int locked_file_lock(struct locked_file *l, enum locked_file_mode mode,
                     struct muster_error *err)
{
    struct stat st;
    int rc = locked_file_open(l, mode, &st, err);

    if (rc != 0)
        return rc;
    if (l->held < 0 || st.st_dev != l->dev || st.st_ino != l->ino ||
        (uint64_t)st.st_size < l->pos) /* another file, or truncated */
        rc = locked_file_begin(l, &st, err);
    if (rc == 0 && (uint64_t)st.st_size > l->pos)
        rc = locked_file_catch_up(l, err);
    if (rc != 0)
        locked_file_unlock(l);
    return rc;
}

void locked_file_unlock(struct locked_file *l)
{
    if (l->fd >= 0)
        (void)close(l->fd); /* and with it the lock */
    l->fd = -1;
}

int locked_file_append(struct locked_file *l, struct span records,
                       struct muster_error *err)
{
    size_t done = 0, used;

    while (done < records.n) {
        const ssize_t n =
            pwrite(l->fd, records.p + done, records.n - done, (off_t)(l->pos + done));

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            const int sys = n == 0 ? ENOSPC : errno;

            /* A partial record would make every reader fail from now on. */
            if (done && ftruncate(l->fd, (off_t)l->pos) < 0)
                return sys_error(l, "write failed halfway, and so did ftruncate", errno,
                                 err);
            return sys_error(l, "write", sys, err);
        }
        done += (size_t)n;
    }
    const int rc = filelog_feed(&l->log, records.p, records.n, &used);
    l->pos += used; /* If memory ran out, the next lock reads the rest. */
    return rc < 0 ? err_nomem(err) : 0;
}

void locked_file_remove(struct locked_file *l)
{
    (void)unlink(l->path);
}

bool locked_file_is_remote(const struct locked_file *l)
{
    /* NFS, CIFS, SMB2, FUSE, Lustre, GPFS, Ceph, 9P, AFS, BeeGFS, OCFS2, GFS2 */
    static const uint32_t magics[] = { 0x6969,     0xff534d42, 0xfe534d42, 0x65735546,
                                       0x0bd00bd0, 0x47504653, 0x00c36400, 0x01021997,
                                       0x5346414f, 0x19830326, 0x7461636f, 0x01161970 };
    struct statfs fs;

    if (statfs(l->path, &fs) < 0)
        return true;
    for (size_t i = 0; i < ARRAY_LEN(magics); i++)
        if ((uint32_t)fs.f_type == magics[i])
            return true;
    return false;
}
