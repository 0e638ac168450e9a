/* json_lines_file.c - see json_lines_file.h. */
#include "agent/json_lines_file.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"

#define FILE_NAME   "file:"
#define PATIENCE_MS 100

int json_lines_open(struct json_lines_file *s, const char *flag, const char *name,
                    int console_fd, struct muster_error *err)
{
    *s = (struct json_lines_file){ .fd = -1 };
    if (strcmp(name, "null") == 0)
        return 0;
    if (strcmp(name, "console") == 0) {
        s->fd = console_fd;
        return 0;
    }
    const char *path = name + strlen(FILE_NAME);
    if (strncmp(name, FILE_NAME, strlen(FILE_NAME)) != 0 || !*path)
        return err_set(err, MUSTER_EINVAL,
                       "'%s'\n%s is one of null, console, file:<path>.", name, flag);
    s->file = true;
    s->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
    if (s->fd < 0)
        return err_set(err, MUSTER_EIO,
                       "%s: %s: %s\nThe file is made if it is not there; its directory "
                       "must exist, and we must be allowed to write.",
                       flag, path, strerror(errno));
    return 0;
}

void json_lines_close(struct json_lines_file *s)
{
    if (s->file && s->fd >= 0)
        close(s->fd);
    s->fd = -1;
}

void json_lines_write(struct json_lines_file *s, struct buf *b, int rc)
{
    struct pollfd ready = { s->fd, POLLOUT, 0 };

    if (s->fd >= 0 && rc == 0 && poll(&ready, 1, PATIENCE_MS) > 0 &&
        write(s->fd, buf_data(b), buf_len(b)) < 0 && errno != EAGAIN && errno != EINTR)
        json_lines_close(s); /* The reader is gone. */
    buf_fini(b);
}
