/* file.c - see file.h. */
#include "loop/file.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "muster/error.h"

#define CHUNK 65536u

ssize_t file_read(const char *path, char *room, size_t size)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    size_t have = 0;
    ssize_t n = -1;

    room[0] = '\0';
    if (fd < 0)
        return -1;
    while (have < size - 1) {
        n = read(fd, room + have, size - 1 - have);
        if (n > 0)
            have += (size_t)n;
        else if (n == 0 || errno != EINTR)
            break;
    }
    const int why = errno;

    (void)close(fd);
    errno = why;
    room[have] = '\0';
    return have || n == 0 ? (ssize_t)have : -1;
}

int file_read_all(const char *path, struct buf *out)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = 1;

    if (fd < 0)
        return MUSTER_EIO;
    for (uint8_t *room; n > 0 && (room = buf_room(out, CHUNK));) {
        n = read(fd, room, CHUNK);
        buf_commit(out, n > 0 ? (size_t)n : 0);
        if (n < 0 && errno == EINTR)
            n = 1;
    }
    const int why = errno;

    (void)close(fd);
    errno = why;
    return n == 0 ? 0 : n < 0 ? MUSTER_EIO : buf_room_err(out, CHUNK);
}

bool file_write_all(int fd, struct span bytes)
{
    while (bytes.n) {
        const ssize_t n = write(fd, bytes.p, bytes.n);

        if (n > 0)
            bytes = span_skip(bytes, (size_t)n);
        else if (n == 0 || errno != EINTR)
            return false;
    }
    return true;
}
