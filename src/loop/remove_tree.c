/* remove_tree.c - see remove_tree.h. */
#include "loop/remove_tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEPTH_MAX 256 /* each level holds a descriptor */

int open_own_dir(int at, const char *name)
{
    const int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;

    if (fd < 0 || (fstat(fd, &st) == 0 && st.st_uid == geteuid()))
        return fd;
    (void)close(fd);
    errno = EPERM;
    return -1;
}

/* Everything is named by the directory that we hold open, so nobody can put another one
 * in its place meanwhile. */
static bool remove_below(int at, const char *name, int depth, bool files)
{
    const int fd = depth < DEPTH_MAX ? open_own_dir(at, name) : -1;
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;

    if (!dir) {
        if (fd >= 0)
            (void)close(fd);
        else if (errno == ENOTDIR || errno == ELOOP)
            return files && unlinkat(at, name, 0) == 0;
        return errno == ENOENT;
    }
    for (struct dirent *e; (e = readdir(dir));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            (void)remove_below(fd, e->d_name, depth + 1, files);
    (void)closedir(dir);
    return unlinkat(at, name, AT_REMOVEDIR) == 0;
}

bool remove_tree(int at, const char *name)
{
    return remove_below(at, name, 0, true);
}

bool remove_empty_dirs(int at, const char *name)
{
    return remove_below(at, name, 0, false);
}
