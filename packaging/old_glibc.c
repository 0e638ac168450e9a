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

/* From glibc 2.38 on, strtol() and its like are these by another name: they also know
 * 0b101, which nobody here writes. The headers of that glibc would redirect the old
 * names to the new ones, so neither <stdlib.h> nor <stdio.h> is included. */
typedef __builtin_va_list va_list;
#define STRTO(type, name)                                                              \
    type old_##name(const char *text, char **end, int base) __asm__(#name);            \
    EXPORT type __isoc23_##name(const char *text, char **end, int base);               \
    EXPORT type __isoc23_##name(const char *text, char **end, int base)                \
    {                                                                                  \
        return old_##name(text, end, base);                                            \
    }

STRTO(long, strtol)
STRTO(unsigned long, strtoul)
STRTO(long long, strtoll)
STRTO(unsigned long long, strtoull)

#define SCANF(name, from_type)                                                         \
    int old_v##name(from_type *from, const char *format,                               \
                    va_list args) __asm__("v" #name);                                  \
    EXPORT int __isoc23_##name(from_type *from, const char *format, ...);              \
    EXPORT int __isoc23_##name(from_type *from, const char *format, ...)               \
    {                                                                                  \
        va_list args;                                                                  \
        int n;                                                                         \
                                                                                       \
        __builtin_va_start(args, format);                                              \
        n = old_v##name(from, format, args);                                           \
        __builtin_va_end(args);                                                        \
        return n;                                                                      \
    }

SCANF(sscanf, const char)
SCANF(fscanf, void) /* a FILE */

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

EXPORT int pidfd_send_signal(int pidfd, int sig, void *info, unsigned flags);
EXPORT int pidfd_send_signal(int pidfd, int sig, void *info, unsigned flags)
{
    return (int)syscall(SYS_pidfd_send_signal, pidfd, sig, info, flags);
}
