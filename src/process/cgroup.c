/* cgroup.c - see cgroup.h. /proc/self/cgroup names our group, /proc/self/mountinfo
 * where its files are; in a container both may end at the container's own group. */
#include "process/cgroup.h"

#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct place {
    bool v2;
    char dir[PATH_MAX];
    size_t mount; /* length of the part of dir that is the mount point */
};

static FILE *open_below(const char *root, const char *path)
{
    char full[PATH_MAX];
    const int n = snprintf(full, sizeof full, "%s%s", root, path);

    return n > 0 && (size_t)n < sizeof full ? fopen(full, "re") : NULL;
}

static bool has_item(const char *list, const char *item)
{
    const size_t n = strlen(item);

    for (const char *p = list; p; p = strchr(p, ',')) {
        p += *p == ',';
        if (strncmp(p, item, n) == 0 && (p[n] == ',' || p[n] == '\0'))
            return true;
    }
    return false;
}

/* The group's path, of the hierarchy that has the controller; version 1 if there is
 * one, since a controller is in one hierarchy only. */
static bool find_group(const char *root, const char *controller, char path[PATH_MAX],
                       bool *v2)
{
    char *line = NULL;
    size_t size = 0;
    FILE *f = open_below(root, "/proc/self/cgroup");
    bool found = false;

    while (f && getline(&line, &size, f) >= 0) {
        line[strcspn(line, "\n")] = '\0';
        char *list = strchr(line, ':');
        char *group = list ? strchr(list + 1, ':') : NULL;
        if (!group)
            continue;
        *list++ = *group++ = '\0';
        const bool unified = strcmp(line, "0") == 0 && !*list;
        if ((unified && !found) || has_item(list, controller)) {
            *v2 = unified;
            snprintf(path, PATH_MAX, "%s", group);
            found = true;
        }
    }
    free(line);
    if (f)
        fclose(f);
    return found;
}

/* One line of mountinfo: whether it is the hierarchy, what of it is mounted, where. */
static bool is_mount(char *line, const char *controller, bool v2, const char **what,
                     const char **where)
{
    char *fields[5], *rest = strstr(line, " - "), *save = NULL;

    if (!rest)
        return false;
    *rest = '\0';
    rest += 3;
    for (int i = 0; i < 5; i++)
        if (!(fields[i] = strtok_r(i ? NULL : line, " ", &save)))
            return false;
    const char *type = strtok_r(rest, " ", &save);
    const char *source = type ? strtok_r(NULL, " ", &save) : NULL;
    const char *options = source ? strtok_r(NULL, " \n", &save) : NULL;
    *what = fields[3];
    *where = fields[4];
    if (!options)
        return false;
    return v2 ? strcmp(type, "cgroup2") == 0
              : strcmp(type, "cgroup") == 0 && has_item(options, controller);
}

static bool find_place(const char *root, const char *controller, struct place *out)
{
    char *line = NULL, group[PATH_MAX];
    size_t size = 0;
    bool found = false;

    if (!find_group(root, controller, group, &out->v2))
        return false;
    FILE *f = open_below(root, "/proc/self/mountinfo");
    while (f && !found && getline(&line, &size, f) >= 0) {
        const char *what, *where;
        if (!is_mount(line, controller, out->v2, &what, &where))
            continue;
        const size_t n = strcmp(what, "/") == 0 ? 0 : strlen(what);
        const bool inside =
            strncmp(group, what, n) == 0 && (group[n] == '/' || !group[n]);
        const int made = snprintf(out->dir, sizeof out->dir, "%s%s%s", root, where,
                                  inside ? group + n : "");
        out->mount = strlen(root) + strlen(where);
        found = made > 0 && (size_t)made < sizeof out->dir;
    }
    free(line);
    if (f)
        fclose(f);
    while (found && out->dir[strlen(out->dir) - 1] == '/')
        out->dir[strlen(out->dir) - 1] = '\0';
    return found;
}

int64_t cgroup_oom_kills(const char *root)
{
    struct place p;
    char line[128];
    int64_t kills = -1;

    if (!find_place(root, "memory", &p))
        return -1;
    FILE *f = open_below(p.dir, p.v2 ? "/memory.events" : "/memory.oom_control");
    while (f && fgets(line, sizeof line, f))
        (void)sscanf(line, "oom_kill %" SCNd64, &kills);
    if (f)
        fclose(f);
    return kills;
}

static bool read_number(const char *dir, const char *name, int64_t *out)
{
    FILE *f = open_below(dir, name);
    const bool got = f && fscanf(f, "%" SCNd64, out) == 1;

    if (f)
        fclose(f);
    return got;
}

/* Of one group: how many processes it may have; 0: no limit of its own. */
static int64_t processes_of(const char *dir, bool v2)
{
    int64_t n = 0;

    (void)v2; /* Both versions have the same file; "max" is no number. */
    return read_number(dir, "/pids.max", &n) ? n : 0;
}

/* Of one group: how many CPUs' time it may use; 0: no limit of its own. */
static int64_t cpus_of(const char *dir, bool v2)
{
    int64_t quota = -1, period = 0;

    if (v2) { /* "max 100000" or "150000 100000" */
        FILE *f = open_below(dir, "/cpu.max");
        if (!f || fscanf(f, "%" SCNd64 " %" SCNd64, &quota, &period) != 2)
            quota = -1;
        if (f)
            fclose(f);
    } else if (!read_number(dir, "/cpu.cfs_quota_us", &quota) ||
               !read_number(dir, "/cpu.cfs_period_us", &period)) {
        quota = -1;
    }
    if (quota <= 0 || period <= 0)
        return 0;
    return quota / period + (quota % period != 0);
}

/* The least limit of the group and its parents, as far as they can be seen; or 0. */
static int64_t least_limit(const char *root, const char *controller,
                           int64_t (*limit_of)(const char *dir, bool v2))
{
    struct place p;
    int64_t least = 0;

    if (!find_place(root, controller, &p))
        return 0;
    for (;;) {
        const int64_t limit = limit_of(p.dir, p.v2);
        if (limit > 0 && (least == 0 || limit < least))
            least = limit;
        char *slash = strrchr(p.dir, '/');
        if (!slash || (size_t)(slash - p.dir) < p.mount)
            return least;
        *slash = '\0';
    }
}

int64_t cgroup_cpus(const char *root)
{
    return least_limit(root, "cpu", cpus_of);
}

int64_t cgroup_processes(const char *root)
{
    return least_limit(root, "pids", processes_of);
}

/* Of one group: how many bytes it may use; 0: no limit, which version 1 says with a
 * number near 2^63. */
static int64_t memory_of(const char *dir, bool v2)
{
    int64_t n = 0;

    return read_number(dir, v2 ? "/memory.max" : "/memory.limit_in_bytes", &n) &&
                   n < INT64_C(1) << 60
               ? n
               : 0;
}

int64_t cgroup_memory(const char *root, enum cgroup_figure what)
{
    struct place p;
    int64_t n = -1;

    if (what != CGROUP_PEAK) {
        n = least_limit(root, "memory", memory_of);
        return n > 0 ? n : -1;
    }
    if (find_place(root, "memory", &p))
        (void)read_number(p.dir, p.v2 ? "/memory.peak" : "/memory.max_usage_in_bytes",
                          &n);
    return n;
}

bool cgroup_name(const char *root, char *to, size_t size)
{
    char path[PATH_MAX];
    bool v2;

    if (!find_group(root, "memory", path, &v2))
        return false;
    snprintf(to, size, "%s", path);
    return true;
}
