/* main.c - muster-bench: finds the part and hands over. Loads are made on this
 * machine's loopback only. */
#include <stdio.h>
#include <string.h>

#include "bench.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} parts[] = {
    { "rdzv", bench_rdzv, "rounds of many nodes against a real muster store" },
    { "load", bench_load, "a closed loop of requests to a store, Redis or echo" },
    { "echo", bench_echo, "a server that only answers: the limit" },
    { "echo-uring", bench_echo_uring, "the same on io_uring" },
    { "bare", bench_bare, "a server that only answers a crowd: the limit" },
    { "lines", bench_lines, "numbered lines, as fast as they can be written" },
    { "lines-check", bench_lines_check, "whether each has come through a tee, whole" },
    { "watch", bench_watch, "a job of many nodes with a page, to be looked at" },
    { "crowd", bench_crowd, "many clients of a store: join, wake, idle, fill, start" },
};

int main(int argc, char **argv)
{
    const size_t count = sizeof parts / sizeof parts[0];

    for (size_t i = 0; argc > 1 && i < count; i++) {
        if (strcmp(argv[1], parts[i].name) == 0)
            return parts[i].run(argc - 1, argv + 1);
    }
    fputs("usage: muster-bench PART [options]\n", stderr);
    for (size_t i = 0; i < count; i++)
        fprintf(stderr, "  %-12s %s\n", parts[i].name, parts[i].help);
    return 2;
}
