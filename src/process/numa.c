/* numa.c - see numa.h. */
#include "process/numa.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"

void cpu_mask_fini(struct cpu_mask *m)
{
    mem_free(m->bits);
    *m = (struct cpu_mask){ 0 };
}

unsigned numa_node_of(const char *root, const char *pci)
{
    char path[PATH_MAX];
    FILE *f;
    int node = 0;

    (void)snprintf(path, sizeof path, "%s/sys/bus/pci/devices/%s/numa_node", root, pci);
    f = fopen(path, "re");
    if (!f)
        return 0;
    if (fscanf(f, "%d", &node) != 1 || node < 0) /* -1: the firmware does not know. */
        node = 0;
    (void)fclose(f);
    return (unsigned)node;
}

#ifdef HAVE_HWLOC
#include "process/hwloc_dl.h"

static unsigned lowest(hwloc_const_cpuset_t set, unsigned otherwise)
{
    const int first = set ? hwloc_bitmap_first(set) : -1;

    return first < 0 ? otherwise : (unsigned)first;
}

/* The largest data or unified cache above a CPU: hwloc's levels end with the last. */
static hwloc_obj_t highest_cache(hwloc_obj_t pu)
{
    hwloc_obj_t found = NULL;

    for (hwloc_obj_t o = pu; o; o = o->parent)
        if (hwloc_obj_type_is_dcache(o->type))
            found = o;
    return found;
}

static struct numa_cpu describe_cpu(hwloc_topology_t t, hwloc_obj_t pu,
                                    bool (*allowed)(unsigned cpu))
{
    const hwloc_obj_t package =
        hwloc_get_ancestor_obj_by_type(t, HWLOC_OBJ_PACKAGE, pu);
    const hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(t, HWLOC_OBJ_CORE, pu);
    const hwloc_obj_t cache = highest_cache(pu);
    struct numa_cpu c = { .cpu = pu->os_index };

    c.node = lowest(pu->nodeset, 0);
    c.package = package ? package->os_index : 0;
    c.core = core ? lowest(core->cpuset, c.cpu) : c.cpu;
    c.cache = cache ? lowest(cache->cpuset, c.cpu) : c.cpu;
    c.allowed = !allowed || allowed(c.cpu);
    return c;
}

static int by_cpu(const void *a, const void *b)
{
    const struct numa_cpu *x = a, *y = b;

    return (x->cpu > y->cpu) - (x->cpu < y->cpu);
}

int numa_read(struct hwloc_topology *topology, bool (*allowed)(unsigned cpu),
              struct numa_table *out, struct muster_error *err)
{
    const int rc = hwloc_dl_load(err);

    if (rc < 0)
        return rc;
    const int depth = hwloc_get_type_depth(topology, HWLOC_OBJ_PU);
    const unsigned n = hwloc_get_nbobjs_by_depth(topology, depth);
    struct numa_table t = { mem_calloc(MAX_OF(n, 1), sizeof *t.cpus), 0 };

    if (!t.cpus)
        return err_nomem(err);
    for (unsigned i = 0; i < n; i++)
        t.cpus[t.count++] =
            describe_cpu(topology, hwloc_get_obj_by_depth(topology, depth, i), allowed);
    qsort(t.cpus, t.count, sizeof *t.cpus, by_cpu);
    *out = t;
    return 0;
}

/* Our own affinity mask, as the agent was started with it. */
static bool in_our_mask(unsigned cpu)
{
    enum { MOST = 65536 };
    static const size_t size = CPU_ALLOC_SIZE(MOST);
    cpu_set_t *set = CPU_ALLOC(MOST);
    bool yes = false;

    if (set && sched_getaffinity(0, size, set) == 0)
        yes = CPU_ISSET_S(cpu, size, set);
    CPU_FREE(set);
    return yes;
}

static int read_machine(const char *root, struct numa_table *out,
                        struct muster_error *err)
{
    hwloc_topology_t topology;
    int rc = hwloc_dl_load(err);

    if (rc < 0)
        return rc;
    if (hwloc_topology_init(&topology) != 0)
        return err_nomem(err);
    if (*root)
        (void)setenv("HWLOC_FSROOT", root, 1);
    (void)hwloc_topology_set_flags(topology, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
    if (hwloc_topology_load(topology) != 0)
        rc = err_set(err, MUSTER_EIO,
                     "Failed to apply NUMA binding: the machine's "
                     "topology cannot be read");
    else
        rc = numa_read(topology, in_our_mask, out, err);
    hwloc_topology_destroy(topology);
    return rc;
}
#else
static int read_machine(const char *root, struct numa_table *out,
                        struct muster_error *err)
{
    (void)root, (void)out;
    return err_set(err, MUSTER_ENOTSUP,
                   "Failed to apply NUMA binding: built without hwloc\n"
                   "Build with hwloc, or leave out --numa-binding.");
}
#endif

static int to_mask(const unsigned *cpus, size_t n, struct cpu_mask *mask,
                   struct muster_error *err)
{
    const size_t size = CPU_ALLOC_SIZE(cpus[n - 1] + 1); /* ascending */
    cpu_set_t *set = mem_calloc(1, size);

    if (!set)
        return err_nomem(err);
    for (size_t i = 0; i < n; i++)
        CPU_SET_S(cpus[i], size, set);
    *mask = (struct cpu_mask){ set, size };
    return 0;
}

int numa_mask(const struct devices_machine *machine, enum numa_mode mode,
              int64_t local_rank, struct cpu_mask *mask, struct muster_error *err)
{
    struct device_list gpus;
    unsigned nodes[DEVICE_MAX];
    struct numa_table t = { 0 };
    unsigned *chosen = NULL;
    int rc;

    devices_gpus(machine, &gpus);
    for (size_t i = 0; i < gpus.count; i++)
        nodes[i] = numa_node_of(machine->root, gpus.items[i].pci);
    rc = read_machine(machine->root, &t, err);
    if (rc == 0 && !(chosen = mem_calloc(t.count + 1, sizeof *chosen)))
        rc = err_nomem(err);
    if (rc == 0)
        rc = numa_choose(&t, mode, nodes, gpus.count, (size_t)local_rank, chosen, err);
    if (rc > 0)
        rc = to_mask(chosen, (size_t)rc, mask, err);
    mem_free(chosen);
    numa_table_fini(&t);
    return rc;
}
