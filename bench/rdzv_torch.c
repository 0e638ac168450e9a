/* rdzv_torch.c - the same round with torch's own DynamicRendezvousHandlers in Python,
 * on torch's own store: torch_nodes.py in a few processes, a thread for each node. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "rdzv.h"

#define PROCESSES 4

struct torch_crew {
    pid_t pid;
    FILE *to, *from;
    long count;
};

/* bench/torch_nodes.py of the tree that the binary was built in. */
static const char *script_path(void)
{
    static char path[4096];
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    char *slash;

    path[MAX_OF(n, 0)] = '\0';
    for (int up = 0; up < 2 && (slash = strrchr(path, '/')); up++)
        *slash = '\0';
    (void)strncat(path, "/bench/torch_nodes.py", sizeof path - strlen(path) - 1);
    return path;
}

static bool spawn(struct torch_crew *c, const char *python, char *const args[])
{
    int to[2], from[2];

    if (pipe(to) < 0 || pipe(from) < 0)
        return false;
    c->pid = fork();
    if (c->pid == 0) {
        (void)dup2(to[0], STDIN_FILENO);
        (void)dup2(from[1], STDOUT_FILENO);
        (void)close(to[1]);
        (void)close(from[0]);
        (void)execv(python, args);
        _exit(127);
    }
    (void)close(to[0]);
    (void)close(from[1]);
    c->to = fdopen(to[1], "w");
    c->from = fdopen(from[0], "r");
    return c->pid > 0 && c->to && c->from;
}

static bool start(struct torch_crew *c, const struct rdzv_options *o, long first,
                  const char *port)
{
    char numbers[3][24];
    char *args[] = { (char *)o->python,
                     (char *)script_path(),
                     "127.0.0.1",
                     (char *)port,
                     "bench",
                     numbers[0],
                     numbers[1],
                     numbers[2],
                     "1",
                     strcmp(port, "0") == 0 ? "host" : NULL,
                     NULL };

    (void)snprintf(numbers[0], sizeof numbers[0], "%ld", first);
    (void)snprintf(numbers[1], sizeof numbers[1], "%ld", c->count);
    (void)snprintf(numbers[2], sizeof numbers[2], "%ld", o->nodes);
    return spawn(c, o->python, args);
}

static bool line_of(struct torch_crew *c, char *line, int size)
{
    return fgets(line, size, c->from) != NULL;
}

static bool until_ready(struct torch_crew *c)
{
    char line[128];

    while (line_of(c, line, sizeof line)) {
        if (strcmp(line, "ready\n") == 0)
            return true;
    }
    return false;
}

static bool start_all(struct torch_crew *crews, const struct rdzv_options *o)
{
    char port[16] = "0", line[128];
    long first = 0;

    for (int p = 0; p < PROCESSES; p++) {
        crews[p].count = o->nodes / PROCESSES + (p < o->nodes % PROCESSES);
        if (!start(&crews[p], o, first, port))
            return false;
        first += crews[p].count;
        if (p == 0 && (!line_of(&crews[0], line, sizeof line) ||
                       sscanf(line, "hosting %15s", port) != 1))
            return false;
    }
    for (int p = 0; p < PROCESSES; p++) {
        if (!until_ready(&crews[p]))
            return false;
    }
    return true;
}

static void stop(struct torch_crew *c)
{
    if (c->pid > 0) {
        (void)kill(c->pid, SIGKILL);
        (void)waitpid(c->pid, NULL, 0);
    }
    if (c->to)
        (void)fclose(c->to);
    if (c->from)
        (void)fclose(c->from);
}

double rdzv_torch_round(const struct rdzv_options *o)
{
    struct torch_crew crews[PROCESSES] = { 0 };
    bool right = start_all(crews, o);
    const double begin = rdzv_now_s();
    double last = begin, at;
    char line[128];

    for (int p = 0; right && p < PROCESSES; p++)
        right = fputc('\n', crews[p].to) != EOF && fflush(crews[p].to) == 0;
    for (int p = 0; right && p < PROCESSES; p++) {
        for (long i = 0; right && i < crews[p].count; i++) {
            right = line_of(&crews[p], line, sizeof line) &&
                    sscanf(line, "told %*d %*d %*d %lf", &at) == 1;
            if (right)
                last = MAX_OF(last, at);
        }
    }
    for (int p = 0; p < PROCESSES; p++)
        stop(&crews[p]);
    if (!right)
        fprintf(stderr, "muster-bench: %s %s did not do its round\n", o->python,
                script_path());
    return right ? last - begin : -1;
}
