/* find_python.c - see find_python.h. torchrun runs scripts with the Python that runs
 * torchrun. When we are installed into an environment, the Python beside our program is
 * that one. */
#include "process/find_python.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/text_list.h"
#include "loop/file.h"
#include "process/proc.h"

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

/* Only absolute entries count: a Python in the current directory may be anybody's. */
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

/* --- shims ------------------------------------------------------------------------ */

#define SHIM_MS 5000

/* Finds `exec "/opt/pyenv/libexec/pyenv" exec` or `exec /opt/asdf/bin/asdf exec` in
 * the text of a script, and copies the manager's path. */
static bool manager_of(const char *text, char *manager, size_t size)
{
    static const char *const managers[] = { "/pyenv", "/asdf" };

    for (const char *p = text; (p = strstr(p, "exec ")); p++) {
        const char *from = p + strlen("exec ");
        const bool quoted = *from == '"';

        from += quoted;
        const size_t n = strcspn(from, quoted ? "\"\n" : " \n");
        if (*from != '/' || n >= size || strncmp(from + n + quoted, " exec ", 6) != 0)
            continue;
        for (size_t i = 0; i < ARRAY_LEN(managers); i++) {
            const size_t m = strlen(managers[i]);

            if (n > m && strncmp(from + n - m, managers[i], m) == 0) {
                memcpy(manager, from, n);
                manager[n] = '\0';
                return true;
            }
        }
    }
    return false;
}

static bool is_shim(const char *path, char *manager, size_t size)
{
    char text[4096];

    return span_starts(file_text(path, text, sizeof text), "#!") &&
           manager_of(text, manager, size);
}

/* The first line that it prints, in time. */
static bool first_line(int fd, char *line, size_t size)
{
    size_t have = 0;

    while (have < size - 1 && !memchr(line, '\n', have)) {
        struct pollfd p = { .fd = fd, .events = POLLIN };
        const ssize_t n =
            poll(&p, 1, SHIM_MS) > 0 ? read(fd, line + have, size - 1 - have) : -1;

        if (n <= 0)
            return false;
        have += (size_t)n;
    }
    line[have] = '\0';
    line[strcspn(line, "\n")] = '\0';
    return line[0] == '/';
}

void python_behind_shim(char *const *envp, char **path)
{
    char manager[PATH_MAX], line[PATH_MAX + 1];
    const char *slash = strrchr(*path, '/');
    int out[2];
    pid_t pid = 0;

    if (!slash || !is_shim(*path, manager, sizeof manager) || pipe2(out, O_CLOEXEC) < 0)
        return;
    char *argv[] = { manager, (char *)"which", (char *)(uintptr_t)(slash + 1), NULL };
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    const struct proc_spec spec = {
        .argv = argv, .envp = envp, .fd = { null, out[1], null }, .session = true
    };
    const int rc = null >= 0 ? proc_spawn(&spec, &pid) : -1;
    close(out[1]);
    if (rc == 0 && first_line(out[0], line, sizeof line) && is_program(line)) {
        char *copy = mem_strdup(line);
        if (copy) {
            mem_free(*path);
            *path = copy;
        }
    }
    close(out[0]);
    if (null >= 0)
        close(null);
    if (pid > 0) {
        kill(-pid, SIGKILL); /* We have read all that we need. */
        waitpid(pid, NULL, 0);
    }
}
