/* file.h - small files in one piece, and bytes that must all be written. */
#ifndef LOOP_FILE_H
#define LOOP_FILE_H

#include <sys/types.h>

#include "base/buf.h"

/* Reads a file into room, at most size - 1 bytes, and puts a NUL behind them. Returns
 * how many bytes there are, or -1 with errno. Never waits for a pipe's writer. */
ssize_t file_read(const char *path, char *room, size_t size);

/* The same as a span, which is empty if the file cannot be read. */
static inline struct span file_text(const char *path, char *room, size_t size)
{
    const ssize_t n = file_read(path, room, size);

    return span_of(room, n > 0 ? (size_t)n : 0);
}

/* Appends all of a file of any size. 0; MUSTER_EIO with errno; MUSTER_EFULL or
 * MUSTER_ENOMEM of the buffer. */
int file_read_all(const char *path, struct buf *out);

/* Writes all of the bytes, or returns false with errno. */
bool file_write_all(int fd, struct span bytes);

#endif
