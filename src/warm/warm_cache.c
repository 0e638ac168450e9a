/* warm_cache.c - see warm_cache.h. */
#include "warm/warm_cache.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/text_list.h"
#include "loop/file.h"

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

/* Likewise: the file of this script and interpreter. */
static char *cache_path(const struct launch_config *c, char *const *envp)
{
    char real[PATH_MAX], *dir = directory(envp);
    const char *script = c->script;
    uint64_t h = UINT64_C(14695981039346656037);

    if (c->entry == ENTRY_SCRIPT && realpath(c->script, real))
        script = real;
    h = hash(h, script);
    if (realpath(c->python, real))
        h = hash(h, real);
    h = hash(h, c->python);
    if (c->title) /* a function of Python: all have one script */
        h = hash(h, c->title);
    char *path = dir ? mem_printf("%s/warm-%016llx", dir, (unsigned long long)h) : NULL;
    mem_free(dir);
    return path;
}

void warm_cache_read(const struct launch_config *c, char *const *envp, struct buf *out)
{
    char *path = cache_path(c, envp);
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
}

/* All that are missing above the file; the last one is the user's alone. */
static void make_directories(char *path)
{
    char *const last = strrchr(path, '/');

    for (char *p = path + 1; *p; p++) {
        if (*p != '/')
            continue;
        *p = '\0';
        (void)mkdir(path, p == last ? 0700 : 0777);
        *p = '/';
    }
}

/* One piece of memory, so that a thread that is late can keep it. */
struct warm_kept {
    char path[PATH_MAX], temp[PATH_MAX];
    size_t size;
    char text[];
};

int warm_cache_prepare(const struct launch_config *c, char *const *envp,
                       const struct warm_core *core, struct warm_kept **out)
{
    char *path = cache_path(c, envp);
    struct warm_kept *kept = NULL;
    struct buf text;
    int rc = MUSTER_ENOENT;

    buf_init(&text, CACHE_MAX);
    if (path && strlen(path) + 32 <= PATH_MAX && warm_core_keep(core, &text) == 0)
        kept = mem_calloc(1, sizeof *kept + buf_len(&text));
    if (kept) {
        (void)snprintf(kept->path, sizeof kept->path, "%s", path);
        (void)snprintf(kept->temp, sizeof kept->temp, "%s.%ld", path, (long)getpid());
        kept->size = buf_len(&text);
        memcpy(kept->text, buf_data(&text), kept->size);
        *out = kept;
        rc = 0;
    }
    buf_fini(&text);
    mem_free(path);
    return rc;
}

void warm_cache_write(void *data)
{
    struct warm_kept *kept = data;

    make_directories(kept->path);
    const int fd =
        open(kept->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return;
    const bool good = file_write_all(fd, span_of(kept->text, kept->size));
    close(fd);
    if (!good || rename(kept->temp, kept->path) < 0)
        (void)unlink(kept->temp);
}

char *warm_cache_files(const struct launch_config *c, char *const *envp)
{
    char *path = cache_path(c, envp);
    char *files = path ? mem_printf("%s.files", path) : NULL;

    mem_free(path);
    return files;
}
