/* directories.c - see directories.h. */
#include "logs/directories.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/text_list.h"
#include "loop/remove_tree.h"

/* --- directories ------------------------------------------------------------------ */

int log_dirs_error(struct muster_error *err, const char *what, const char *path)
{
    const int errnum = errno;
    const int code = errnum == EACCES || errnum == EPERM ? MUSTER_EACCES : MUSTER_EIO;

    return err_set(err, code,
                   "[Errno %d] %s: '%s'\n%s; give another directory with --log-dir.",
                   errnum, strerror(errnum), path, what);
}

int log_dirs_make(const char *path, struct muster_error *err)
{
    char *copy = mem_strdup(path);
    if (!copy)
        return err_nomem(err);
    for (char *p = copy + 1; *p; p++) {
        if (*p != '/')
            continue;
        *p = '\0';
        mkdir(copy, 0777); /* The last call decides. */
        *p = '/';
    }
    const bool made = mkdir(copy, 0777) == 0 || errno == EEXIST;
    mem_free(copy);
    return made ? 0 : log_dirs_error(err, "The log directory cannot be made", path);
}

char *log_dirs_unique(const char *stem, struct muster_error *err)
{
    static const char alphabet[] = "abcdefghijklmnopqrstuvwxyz0123456789_";
    uint8_t random[8];

    for (int tries = 0; tries < 100; tries++) {
        if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
            break;
        char *path = mem_printf("%sxxxxxxxx", stem);
        if (!path)
            break;
        for (size_t i = 0; i < sizeof random; i++)
            path[strlen(stem) + i] = alphabet[random[i] % (sizeof alphabet - 1)];
        if (mkdir(path, 0700) == 0)
            return path;
        const bool again = errno == EEXIST;
        if (!again)
            log_dirs_error(err, "A directory for logs cannot be made", path);
        mem_free(path);
        if (!again)
            return NULL;
    }
    err_set(err, MUSTER_EIO, "no name for a directory %s*", stem);
    return NULL;
}

const char *log_dirs_temp(char *const *envp)
{
    const char *const list[] = { env_get(envp, "TMPDIR"),
                                 env_get(envp, "TEMP"),
                                 env_get(envp, "TMP"),
                                 "/tmp",
                                 "/var/tmp",
                                 "/usr/tmp" };
    struct stat st;

    for (size_t i = 0; i < ARRAY_LEN(list); i++)
        if (list[i] && list[i][0] && stat(list[i], &st) == 0 && S_ISDIR(st.st_mode) &&
            access(list[i], W_OK | X_OK) == 0)
            return list[i];
    return ".";
}

static int find_content(const char *path, const struct stat *st, int type,
                        struct FTW *where)
{
    (void)path;
    (void)where;
    return type != FTW_D && !(S_ISREG(st->st_mode) && st->st_size == 0);
}

/* <run>/earlier/<name>.<n> with the first n that is free, or NULL. */
static char *free_place(const char *run, const char *name)
{
    struct stat st;
    char *dir = mem_printf("%s/earlier", run);

    if (!dir || (mkdir(dir, 0777) != 0 && errno != EEXIST)) {
        mem_free(dir);
        return NULL;
    }
    for (unsigned n = 0; n < 1000000; n++) {
        char *path = mem_printf("%s/%s.%u", dir, name, n);

        if (path && lstat(path, &st) == 0) {
            mem_free(path);
            continue;
        }
        mem_free(dir);
        return path;
    }
    mem_free(dir);
    return NULL;
}

/* Moves it out of the way: it is kept if it holds anything, or is not ours to remove,
 * and can be moved. */
static char *set_aside(const char *run, const char *name, const char *path)
{
    const bool empty = nftw(path, find_content, 16, FTW_PHYS) == 0;
    char *to;

    if (empty && remove_tree(AT_FDCWD, path))
        return NULL;
    to = free_place(run, name);
    if (to && rename(path, to) == 0)
        return to;
    mem_free(to);
    if (!empty)
        (void)remove_tree(AT_FDCWD, path);
    return NULL;
}

int log_dirs_renew(const char *run, const char *name, char **moved_to,
                   struct muster_error *err)
{
    char *path = mem_printf("%s/%s", run, name);
    int rc = 0;

    if (moved_to)
        *moved_to = NULL;
    if (!path)
        return err_nomem(err);
    if (mkdir(path, 0777) != 0) {
        char *moved = errno == EEXIST ? set_aside(run, name, path) : NULL;

        if (mkdir(path, 0777) != 0)
            rc = log_dirs_error(err, "The log directory cannot be made", path);
        if (moved_to)
            *moved_to = moved;
        else
            mem_free(moved);
    }
    mem_free(path);
    return rc;
}

void log_dirs_forget(const char *run, const char *name)
{
    const size_t n = strlen(name);
    char *path = mem_printf("%s/%s", run, name);
    char *earlier = mem_printf("%s/earlier", run);
    DIR *dir = earlier ? opendir(earlier) : NULL;

    if (path)
        (void)remove_tree(AT_FDCWD, path);
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (strncmp(e->d_name, name, n) == 0 && e->d_name[n] == '.')
            (void)remove_tree(dirfd(dir), e->d_name);
    if (dir)
        closedir(dir);
    mem_free(earlier);
    mem_free(path);
}
