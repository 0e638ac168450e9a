/* port_holder.c - see port_holder.h. /proc/net/tcp lists sockets with their inodes, and
 * the links in /proc/PID/fd name the inodes of a process's sockets. */
#include "net/port_holder.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "base/escape.h"
#include "loop/file.h"

#define LISTEN      0x0a /* the kernel's number for that state */
#define COMMAND_MAX 200u
#define INODES      16u

/* Adds the inodes of all sockets in the table that listen on the port. */
static size_t find_listeners(const char *table, uint16_t port, uint64_t *inodes,
                             size_t count)
{
    FILE *f = fopen(table, "re");
    char line[512];

    while (f && count < INODES && fgets(line, sizeof line, f)) {
        unsigned local, state;
        uint64_t inode;

        if (sscanf(line,
                   " %*d: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*s %*s %*s %*d %*d "
                   "%" SCNu64,
                   &local, &state, &inode) == 3 &&
            local == port && state == LISTEN && inode != 0)
            inodes[count++] = inode;
    }
    if (f)
        fclose(f);
    return count;
}

static bool holds_socket(const char *pid, const uint64_t *inodes, size_t count)
{
    char path[300], link[64];
    bool found = false;
    uint64_t inode;

    snprintf(path, sizeof path, "/proc/%.20s/fd", pid);
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && !found && (e = readdir(dir));) {
        snprintf(path, sizeof path, "/proc/%.20s/fd/%.30s", pid, e->d_name);
        const ssize_t n = readlink(path, link, sizeof link - 1);
        if (n <= 0)
            continue;
        link[n] = '\0';
        if (sscanf(link, "socket:[%" SCNu64 "]", &inode) != 1)
            continue;
        for (size_t i = 0; i < count && !found; i++)
            found = inode == inodes[i];
    }
    if (dir)
        closedir(dir);
    return found;
}

/* The process's command line with spaces between its words, or its name if it has no
 * command line. */
static size_t read_command(const char *pid, char *to, size_t size)
{
    static const char *const files[] = { "cmdline", "comm" };
    char path[64];
    ssize_t n = 0;

    for (size_t i = 0; i < ARRAY_LEN(files) && n <= 0; i++) {
        snprintf(path, sizeof path, "/proc/%.20s/%s", pid, files[i]);
        n = file_read(path, to, size);
    }
    while (n > 0 && (to[n - 1] == '\0' || to[n - 1] == '\n'))
        n--;
    for (ssize_t i = 0; i < n; i++)
        if (to[i] == '\0')
            to[i] = ' ';
    return n > 0 ? (size_t)n : 0;
}

static void describe_holder(const char *pid, char *to, size_t size)
{
    char raw[COMMAND_MAX], clean[4 * COMMAND_MAX], path[64], user[32] = "";
    const size_t n = read_command(pid, raw, sizeof raw);
    struct stat st;

    snprintf(path, sizeof path, "/proc/%.20s", pid);
    if (stat(path, &st) == 0 && st.st_uid == 0)
        snprintf(user, sizeof user, ", root");
    else if (stat(path, &st) == 0)
        snprintf(user, sizeof user, ", user %u", (unsigned)st.st_uid);
    snprintf(to, size, "pid %.20s (%s%s)", pid,
             escape_text(clean, sizeof clean, span_of(raw, n)), user);
}

bool port_holder(uint16_t port, char *to, size_t size)
{
    uint64_t inodes[INODES];
    size_t count = find_listeners("/proc/net/tcp", port, inodes, 0);
    bool found = false;

    count = find_listeners("/proc/net/tcp6", port, inodes, count);
    if (count == 0)
        return false;
    DIR *dir = opendir("/proc");
    for (struct dirent *e; dir && !found && (e = readdir(dir));) {
        if (e->d_name[0] < '1' || e->d_name[0] > '9' ||
            !holds_socket(e->d_name, inodes, count))
            continue;
        describe_holder(e->d_name, to, size);
        found = true;
    }
    if (dir)
        closedir(dir);
    return found;
}
