/* numa.c - see numa.h. */
#include "process/core/numa.h"

#include <assert.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"

const char *numa_mode_word(enum numa_mode mode)
{
    static const char *const words[] = {
#define NUMA_MODE_WORD(name, word) [name] = word,
        NUMA_MODES(NUMA_MODE_WORD)
#undef NUMA_MODE_WORD
    };

    return words[mode];
}

void numa_table_fini(struct numa_table *t)
{
    mem_free(t->cpus);
    *t = (struct numa_table){ 0 };
}

static bool usable(const struct numa_cpu *c, unsigned node)
{
    return c->allowed && c->node == node;
}

/* The lowest allowed CPU of a node, or NULL. */
static const struct numa_cpu *first_of(const struct numa_table *t, unsigned node)
{
    for (size_t i = 0; i < t->count; i++)
        if (usable(&t->cpus[i], node))
            return &t->cpus[i];
    return NULL;
}

static int choose_node(const struct numa_table *t, unsigned node, unsigned *chosen)
{
    int n = 0;

    for (size_t i = 0; i < t->count; i++)
        if (usable(&t->cpus[i], node))
            chosen[n++] = t->cpus[i].cpu;
    return n;
}

/* All nodes whose lowest CPU sits in the same package as the GPU's node's. */
static int choose_socket(const struct numa_table *t, unsigned node, unsigned *chosen)
{
    const struct numa_cpu *own = first_of(t, node);
    int n = 0;

    for (size_t i = 0; own && i < t->count; i++) {
        const struct numa_cpu *c = &t->cpus[i];

        if (c->allowed && first_of(t, c->node)->package == own->package)
            chosen[n++] = c->cpu;
    }
    return n;
}

/* A core or a group of cores that share a cache: its lowest CPU, and how many of its
 * CPUs are ours to use. */
struct cluster {
    unsigned key;
    size_t size;
};

static unsigned cpu_key(const struct numa_cpu *c, bool by_core)
{
    return by_core ? c->core : c->cache;
}

/* The clusters of a node's allowed CPUs, or NULL for lack of memory. */
static struct cluster *clusters_of(const struct numa_table *t, unsigned node,
                                   bool by_core, size_t *count)
{
    struct cluster *all = mem_calloc(t->count + 1, sizeof *all);
    size_t n = 0, k;

    for (size_t i = 0; all && i < t->count; i++) {
        const struct numa_cpu *c = &t->cpus[i];

        if (!usable(c, node))
            continue;
        for (k = 0; k < n && all[k].key != cpu_key(c, by_core); k++)
            ;
        if (k == n)
            all[n++].key = cpu_key(c, by_core);
        all[k].size++;
    }
    *count = n;
    return all;
}

static int add_cluster(const struct numa_table *t, unsigned node, bool by_core,
                       unsigned key, unsigned *chosen, int n)
{
    for (size_t i = 0; i < t->count; i++)
        if (usable(&t->cpus[i], node) && cpu_key(&t->cpus[i], by_core) == key)
            chosen[n++] = t->cpus[i].cpu;
    return n;
}

static int by_key(const void *a, const void *b)
{
    const struct cluster *x = a, *y = b;

    return (x->key > y->key) - (x->key < y->key);
}

static int by_size_then_key(const void *a, const void *b)
{
    const struct cluster *x = a, *y = b;

    if (x->size != y->size)
        return x->size > y->size ? -1 : 1;
    return by_key(a, b);
}

static int by_number(const void *a, const void *b)
{
    const unsigned x = *(const unsigned *)a, y = *(const unsigned *)b;

    return (x > y) - (x < y);
}

/* The node's cores in equal shares, one for each of its GPUs; the first GPUs get the
 * cores that are left over. */
static int choose_exclusive(const struct numa_table *t, unsigned node, size_t position,
                            size_t n_gpus, unsigned *chosen, struct muster_error *err)
{
    size_t count;
    struct cluster *cores = clusters_of(t, node, true, &count);
    const size_t share = count / n_gpus, extra = count % n_gpus;
    const size_t first = position * share + MIN_OF(position, extra);
    const size_t last = first + share + (position < extra);
    int n = 0;

    if (!cores)
        return err_nomem(err);
    assert(n_gpus > 0 && position < n_gpus && last <= count);
    qsort(cores, count, sizeof *cores, by_key);
    for (size_t i = first; share && i < last; i++)
        n = add_cluster(t, node, true, cores[i].key, chosen, n);
    mem_free(cores);
    if (share == 0)
        return err_set(err, MUSTER_EINVAL,
                       "There are only %zu physical cores on NUMA node %u, but there "
                       "are %zu GPUs associated with this NUMA node.",
                       count, node, n_gpus);
    qsort(chosen, (size_t)n, sizeof *chosen, by_number);
    return n;
}

static int choose_core_complex(const struct numa_table *t, unsigned node,
                               size_t position, unsigned *chosen,
                               struct muster_error *err)
{
    size_t count;
    struct cluster *caches = clusters_of(t, node, false, &count);
    int n = 0;

    if (!caches)
        return err_nomem(err);
    qsort(caches, count, sizeof *caches, by_size_then_key);
    if (count)
        n = add_cluster(t, node, false, caches[position % count].key, chosen, 0);
    mem_free(caches);
    return n;
}

int numa_choose(const struct numa_table *t, enum numa_mode mode, const unsigned *nodes,
                size_t n_gpus, size_t gpu, unsigned *chosen, struct muster_error *err)
{
    size_t position = 0, sharing = 0;
    int n = 0;

    if (gpu >= n_gpus)
        return err_set(err, MUSTER_EINVAL,
                       "Failed to apply NUMA binding: there is no GPU number %zu\n"
                       "--numa-binding puts worker n near GPU n; %zu are visible here.",
                       gpu, n_gpus);
    for (size_t i = 0; i < n_gpus; i++) {
        if (nodes[i] != nodes[gpu])
            continue;
        position += i < gpu;
        sharing++;
    }
    assert(sharing > 0 && position < sharing);
    switch (mode) {
    case NUMA_NONE:
        return err_set(err, MUSTER_EBUG, "no binding was asked for");
    case NUMA_NODE:
        n = choose_node(t, nodes[gpu], chosen);
        break;
    case NUMA_SOCKET:
        n = choose_socket(t, nodes[gpu], chosen);
        break;
    case NUMA_EXCLUSIVE:
        n = choose_exclusive(t, nodes[gpu], position, sharing, chosen, err);
        break;
    case NUMA_CORE_COMPLEX:
        n = choose_core_complex(t, nodes[gpu], position, chosen, err);
        break;
    }
    if (n == 0)
        return err_set(err, MUSTER_EINVAL,
                       "Must bind to a non-empty set of CPU indices\n"
                       "None of NUMA node %u's CPUs is in our affinity mask.",
                       nodes[gpu]);
    return n;
}
