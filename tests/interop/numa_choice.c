/* numa_choice.c - answers, a line each, which CPUs --numa-binding would choose.
 *
 * A question: MODE GPU N_GPUS NODE... N_CPUS then for each CPU its NODE PACKAGE CORE
 * CACHE ALLOWED. An answer: the CPUs, or "error". */
#include <stdio.h>
#include <stdlib.h>

#include "process/core/numa.h"

static unsigned number(void)
{
    unsigned n;

    if (scanf("%u", &n) != 1)
        exit(2);
    return n;
}

int main(void)
{
    unsigned mode;

    while (scanf("%u", &mode) == 1) {
        struct numa_cpu cpus[256];
        struct numa_table t = { cpus, 0 };
        unsigned nodes[64], chosen[256];
        const unsigned gpu = number(), n_gpus = number();
        int n;

        for (unsigned i = 0; i < n_gpus; i++)
            nodes[i % 64] = number();
        t.count = number() % 257;
        for (unsigned i = 0; i < t.count; i++) {
            cpus[i] = (struct numa_cpu){ .cpu = i, .node = number() };
            cpus[i].package = number();
            cpus[i].core = number();
            cpus[i].cache = number();
            cpus[i].allowed = number() != 0;
        }
        n = numa_choose(&t, (enum numa_mode)mode, nodes, n_gpus, gpu, chosen, NULL);
        for (int i = 0; i < n; i++)
            printf("%s%u", i ? " " : "", chosen[i]);
        puts(n < 0 ? "error" : "");
        if (fflush(stdout) != 0)
            return 1;
    }
    return 0;
}
