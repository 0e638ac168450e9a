/* warm_cache.c - see warm_cache.h. */
#include "warm/warm_cache.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "launch/core/options.h"

#define CACHE_MAX (1u << 20)

static uint64_t hash(uint64_t h, const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p; p++)
        h = (h ^ *p) * UINT64_C(1099511628211); /* FNV-1a */
    return (h ^ 0xff) * UINT64_C(1099511628211);
}

/* owned; NULL: nowhere, or no memory. */
static char *directory(char *const *envp)
{
    const char *cache = env_get(envp, "XDG_CACHE_HOME");
    const char *home = env_get(envp, "HOME");

    if (cache && *cache == '/')
        return mem_printf("%s/muster", cache);
    return home && *home == '/' ? mem_printf("%s/.cache/muster", home) : NULL;
}

static char *path_of(const struct launch_config *c, const char *dir)
{
    char real[PATH_MAX];
    const char *script = c->script;
    uint64_t h = UINT64_C(14695981039346656037);

    if (c->entry == ENTRY_SCRIPT && realpath(c->script, real))
        script = real;
    h = hash(h, script);
    if (realpath(c->python, real))
        h = hash(h, real);
    h = hash(h, c->python);
    return mem_printf("%s/warm-%016llx", dir, (unsigned long long)h);
}

void warm_cache_read(const struct launch_config *c, char *const *envp, struct buf *out)
{
    char *dir = directory(envp), *path = dir ? path_of(c, dir) : NULL;
    const int fd = path ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
    struct stat st;

    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
        st.st_uid == geteuid() && st.st_size < CACHE_MAX) {
        uint8_t *room = buf_room(out, CACHE_MAX);
        const ssize_t n = room ? read(fd, room, CACHE_MAX) : 0;
        if (n > 0)
            buf_commit(out, (size_t)n);
    }
    if (fd >= 0)
        close(fd);
    mem_free(path);
    mem_free(dir);
}

static void make_directories(char *dir)
{
    for (char *p = dir + 1; *p; p++) {
        if (*p != '/')
            continue;
        *p = '\0';
        (void)mkdir(dir, 0777);
        *p = '/';
    }
    (void)mkdir(dir, 0700);
}

void warm_cache_write(const struct launch_config *c, char *const *envp,
                      const struct text_list *names)
{
    char *dir = directory(envp), *path = dir ? path_of(c, dir) : NULL;
    char *temp = path ? mem_printf("%s.%ld", path, (long)getpid()) : NULL;
    int fd = -1;

    if (temp) {
        make_directories(dir);
        fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    }
    bool good = fd >= 0;
    for (size_t i = 0; good && i < names->count; i++)
        good = dprintf(fd, "%s\n", names->items[i]) > 0;
    if (fd >= 0) {
        close(fd);
        if (!good || rename(temp, path) < 0)
            (void)unlink(temp);
    }
    mem_free(temp);
    mem_free(path);
    mem_free(dir);
}

char *warm_cache_files(const struct launch_config *c, char *const *envp)
{
    char *dir = directory(envp), *path = dir ? path_of(c, dir) : NULL;
    char *files = path ? mem_printf("%s.files", path) : NULL;

    mem_free(path);
    mem_free(dir);
    return files;
}
