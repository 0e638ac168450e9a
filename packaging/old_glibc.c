/* old_glibc.c - what glibc 2.28 has only inside of its headers or not at all, for the
 * wheel.
 *
 * Debian's libraries are built against a newer one and call these by name. Linked into
 * the bundled libmuster.so and exported, so that the libraries beside it find them;
 * with a newer glibc its own are found instead, or these do the same. See
 * python/hatch_build.py. <sys/stat.h> and <unistd.h> would declare or redirect the very
 * names. */
#include <fcntl.h>
#include <sys/syscall.h>

#define EXPORT __attribute__((visibility("default")))

long syscall(long number, ...);

/* The kernel's struct stat is glibc's on 64-bit machines. */
#define STAT(name, at, path, flags, ...)                                               \
    EXPORT int name(__VA_ARGS__);                                                      \
    EXPORT int name(__VA_ARGS__)                                                       \
    {                                                                                  \
        return (int)syscall(SYS_newfstatat, at, path, st, flags);                      \
    }
#define BOTH(name, at, path, flags, ...)                                               \
    STAT(name, at, path, flags, __VA_ARGS__)                                           \
    STAT(name##64, at, path, flags, __VA_ARGS__)

BOTH(stat, AT_FDCWD, path, 0, const char *path, void *st)
BOTH(lstat, AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, const char *path, void *st)
BOTH(fstat, fd, "", AT_EMPTY_PATH, int fd, void *st)
BOTH(fstatat, fd, path, flags, int fd, const char *path, void *st, int flags)

EXPORT int gettid(void);
EXPORT int gettid(void)
{
    return (int)syscall(SYS_gettid);
}

EXPORT int close_range(unsigned first, unsigned last, int flags);
EXPORT int close_range(unsigned first, unsigned last, int flags)
{
    return (int)syscall(SYS_close_range, first, last, flags);
}
