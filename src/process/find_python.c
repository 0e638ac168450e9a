/* find_python.c - see find_python.h. torchrun runs scripts with the Python that runs
 * torchrun. When we are installed into an environment, the Python beside our program is
 * that one. */
#include "process/find_python.h"

#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "base/err.h"
#include "base/mem.h"
#include "launch/core/options.h"

static const char *const names[] = { "python3", "python" };

static bool is_program(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

/* The first of the names in a directory. 1: found, 0: not, or MUSTER_ENOMEM. */
static int look_in(const char *dir, size_t n, const char *below, char **path)
{
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        char *p = mem_printf("%.*s%s/%s", (int)n, dir, below, names[i]);

        if (!p)
            return MUSTER_ENOMEM;
        if (is_program(p)) {
            *path = p;
            return 1;
        }
        mem_free(p);
    }
    return 0;
}

static int look_beside(const char *self, char **path)
{
    char real[PATH_MAX];
    const char *slash;
    ssize_t n;

    if (!self) {
        n = readlink("/proc/self/exe", real, sizeof real - 1);
        if (n <= 0)
            return 0;
        real[n] = '\0';
        self = real;
    }
    slash = strrchr(self, '/');
    return slash ? look_in(self, (size_t)(slash - self), "", path) : 0;
}

/* Absolute entries only: a Python in the current directory is somebody's file. */
static int look_on_path(const char *dirs, char **path)
{
    int found = 0;

    for (const char *p = dirs; p && *p && found == 0;) {
        const size_t n = strcspn(p, ":");

        if (n && *p == '/')
            found = look_in(p, n, "", path);
        p += n + (p[n] == ':');
    }
    return found;
}

int python_find(char *const *envp, const char *self, char **path,
                struct muster_error *err)
{
    const char *venv = env_get(envp, "VIRTUAL_ENV");
    const char *dirs = env_get(envp, "PATH");
    int found = venv && *venv ? look_in(venv, strlen(venv), "/bin", path) : 0;

    found = found ? found : look_beside(self, path);
    found = found ? found
                  : look_on_path(dirs ? dirs : "/usr/local/bin:/usr/bin:/bin", path);
    if (found == 0)
        return err_set(
            err, MUSTER_ENOENT,
            "no Python found to run the script\n"
            "Looked in $VIRTUAL_ENV/bin, beside this program and on PATH. Set "
            "PYTHON_EXEC, or use --no-python for other programs.");
    return found < 0 ? err_nomem(err) : 0;
}
