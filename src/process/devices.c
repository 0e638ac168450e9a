/* devices.c - see devices.h. What cannot be read counts as not there. */
#include "process/devices.h"

#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/err.h"
#include "base/text_list.h"
#include "loop/file.h"
#include "process/cgroup.h"

#define NVML   "libnvidia-ml.so.1"
#define CUDA   "libcuda.so.1"
#define LEVEL0 "libze_loader.so.1"

static void *real_symbol(void *ctx, const char *library, const char *name)
{
    void *lib = dlopen(library, RTLD_NOW | RTLD_LOCAL);

    (void)ctx;
    /* It stays loaded: some drivers do not survive being unloaded. */
    return lib ? dlsym(lib, name) : NULL;
}

struct devices_machine devices_real(char *const *envp)
{
    return (struct devices_machine){ "", real_symbol, NULL, envp };
}

static void *symbol(const struct devices_machine *p, const char *library,
                    const char *name)
{
    return p->symbol(p->ctx, library, name);
}

/* What follows "<key> " (or "<key>:") at the start of a line. */
static bool find_line(const char *text, const char *key, char *value, size_t size)
{
    const size_t n = strlen(key);

    for (const char *p = text; *p;) {
        const size_t len = strcspn(p, "\n");

        if (strncmp(p, key, n) == 0 && strchr(" :\t", p[n]) && p[n]) {
            const char *v = p + n + strspn(p + n, " :\t");

            (void)snprintf(value, size, "%.*s", (int)(len - (size_t)(v - p)), v);
            return true;
        }
        p += len + (p[len] == '\n');
    }
    return false;
}

typedef void (*entry_fn)(const char *path, const char *name, struct device_list *l);

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strverscmp((*a)->d_name, (*b)->d_name);
}

/* Calls fn for each entry of a directory, in the order of names. */
static void each_entry(const struct devices_machine *p, const char *dir, entry_fn fn,
                       struct device_list *l)
{
    char path[PATH_MAX];
    struct dirent **entries = NULL;
    int n;

    (void)snprintf(path, sizeof path, "%s%s", p->root, dir);
    n = scandir(path, &entries, NULL, by_name);
    for (int i = 0; i < n; i++) {
        char full[PATH_MAX + 300];

        (void)snprintf(full, sizeof full, "%s/%s", path, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.' && l->count < DEVICE_MAX)
            fn(full, entries[i]->d_name, l);
        free(entries[i]);
    }
    free(entries);
}

/* NVIDIA */

typedef int (*nvml_init_fn)(void);
typedef int (*nvml_count_fn)(unsigned *n);
typedef int (*nvml_handle_fn)(unsigned i, void **device);
typedef int (*nvml_text_fn)(void *device, char *text, unsigned size);

struct nvml_pci { /* nvmlPciInfo_t */
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};
typedef int (*nvml_pci_fn)(void *device, struct nvml_pci *info);

/* Initializes NVML. NULL: it is not there; else what finds a device, of *n. */
static nvml_handle_fn open_nvml(const struct devices_machine *p, unsigned *n)
{
    const nvml_init_fn init = (nvml_init_fn)symbol(p, NVML, "nvmlInit_v2");
    const nvml_count_fn count = (nvml_count_fn)symbol(p, NVML, "nvmlDeviceGetCount_v2");
    const nvml_handle_fn handle =
        (nvml_handle_fn)symbol(p, NVML, "nvmlDeviceGetHandleByIndex_v2");

    *n = 0;
    if (!init || !count || !handle || init() != 0)
        return NULL;
    if (count(n) != 0)
        *n = 0;
    return handle;
}

static bool list_nvml(const struct devices_machine *p, struct device_list *l)
{
    const nvml_init_fn end = (nvml_init_fn)symbol(p, NVML, "nvmlShutdown");
    const nvml_text_fn uuid = (nvml_text_fn)symbol(p, NVML, "nvmlDeviceGetUUID");
    const nvml_pci_fn pci = (nvml_pci_fn)symbol(p, NVML, "nvmlDeviceGetPciInfo_v3");
    unsigned n;
    const nvml_handle_fn handle = uuid ? open_nvml(p, &n) : NULL;

    if (!handle)
        return false;
    for (unsigned i = 0; i < n && l->count < DEVICE_MAX; i++) {
        struct device *d = &l->items[l->count];
        struct nvml_pci info = { 0 };
        void *device;

        *d = (struct device){ 0 };
        if (handle(i, &device) != 0)
            break;
        (void)uuid(device, d->uuid, sizeof d->uuid);
        if (pci && pci(device, &info) == 0)
            (void)snprintf(d->pci, sizeof d->pci, "%04x:%02x:%02x.0", info.domain,
                           info.bus, info.device);
        l->count++;
    }
    if (end)
        (void)end();
    return true;
}

typedef int (*nvml_busy_fn)(void *device, unsigned of[2]); /* GPU, memory */
typedef int (*nvml_memory_fn)(void *device, unsigned long long of[3]);
typedef int (*nvml_heat_fn)(void *device, int sensor, unsigned *celsius);

size_t devices_use(const struct devices_machine *p, struct device_use *out, size_t size)
{
    unsigned n;
    const nvml_handle_fn handle = open_nvml(p, &n);
    const nvml_text_fn name = (nvml_text_fn)symbol(p, NVML, "nvmlDeviceGetName");
    const nvml_busy_fn busy =
        (nvml_busy_fn)symbol(p, NVML, "nvmlDeviceGetUtilizationRates");
    const nvml_memory_fn memory =
        (nvml_memory_fn)symbol(p, NVML, "nvmlDeviceGetMemoryInfo");
    const nvml_heat_fn heat = (nvml_heat_fn)symbol(p, NVML, "nvmlDeviceGetTemperature");
    size_t done = 0;

    for (; handle && done < n && done < size; done++) {
        struct device_use *u = &out[done];
        unsigned long long bytes[3] = { 0 }; /* total, free, used */
        unsigned rates[2] = { 0 }, celsius = 0;
        void *device;

        *u = (struct device_use){ 0 };
        if (handle((unsigned)done, &device) != 0)
            break;
        if (name)
            (void)name(device, u->name, sizeof u->name);
        u->name[sizeof u->name - 1] = '\0';
        if (busy && busy(device, rates) == 0)
            u->busy = rates[0];
        if (heat && heat(device, 0, &celsius) == 0)
            u->celsius = celsius;
        if (memory && memory(device, bytes) == 0) {
            u->memory_total = bytes[0];
            u->memory = bytes[2];
        }
    }
    return done;
}

typedef int (*cuda_init_fn)(unsigned flags);
typedef int (*cuda_count_fn)(int *n);
typedef int (*cuda_pci_fn)(char *text, int size, int device);

/* The driver has applied CUDA_VISIBLE_DEVICES itself. */
static bool list_cuda(const struct devices_machine *p, struct device_list *l)
{
    const cuda_init_fn init = (cuda_init_fn)symbol(p, CUDA, "cuInit");
    const cuda_count_fn count = (cuda_count_fn)symbol(p, CUDA, "cuDeviceGetCount");
    const cuda_pci_fn pci = (cuda_pci_fn)symbol(p, CUDA, "cuDeviceGetPCIBusId");
    int n = 0;

    if (!init || !count || init(0) != 0 || count(&n) != 0)
        return false;
    for (int i = 0; i < n && l->count < DEVICE_MAX; i++) {
        struct device *d = &l->items[l->count++];

        *d = (struct device){ 0 };
        if (pci)
            (void)pci(d->pci, (int)sizeof d->pci, i);
        for (char *c = d->pci; *c; c++) /* sysfs writes addresses in lower case. */
            if (*c >= 'A' && *c <= 'F')
                *c = (char)(*c - 'A' + 'a');
    }
    return true;
}

static void add_proc_gpu(const char *path, const char *name, struct device_list *l)
{
    struct device *d = &l->items[l->count];
    char file[PATH_MAX + 400], text[4096];

    (void)snprintf(file, sizeof file, "%s/information", path);
    if (file_read(file, text, sizeof text) < 0)
        return;
    *d = (struct device){ 0 };
    (void)snprintf(d->pci, sizeof d->pci, "%s", name);
    (void)find_line(text, "GPU UUID", d->uuid, sizeof d->uuid);
    l->count++;
}

static void list_nvidia(const struct devices_machine *p, struct device_list *l)
{
    const char *visible = env_get(p->envp, "CUDA_VISIBLE_DEVICES");

    if (visible_devices_is_mig(visible)) {
        (void)list_cuda(p, l);
        return;
    }
    if (!list_nvml(p, l)) {
        if (list_cuda(p, l))
            return;
        each_entry(p, "/proc/driver/nvidia/gpus", add_proc_gpu, l);
    }
    visible_devices_filter(l, visible);
}

/* AMD */

static void add_kfd_node(const char *path, const char *name, struct device_list *l)
{
    struct device *d = &l->items[l->count];
    char file[PATH_MAX + 400], text[8192], value[64];
    unsigned long long location = 0, domain = 0;

    (void)name;
    (void)snprintf(file, sizeof file, "%s/properties", path);
    if (file_read(file, text, sizeof text) < 0)
        return;
    if (!find_line(text, "simd_count", value, sizeof value) || atoi(value) <= 0)
        return; /* A CPU. */
    *d = (struct device){ 0 };
    if (find_line(text, "unique_id", value, sizeof value))
        (void)snprintf(d->uuid, sizeof d->uuid, "GPU-%016llx",
                       strtoull(value, NULL, 10));
    if (find_line(text, "location_id", value, sizeof value))
        location = strtoull(value, NULL, 10);
    if (find_line(text, "domain", value, sizeof value))
        domain = strtoull(value, NULL, 10);
    (void)snprintf(d->pci, sizeof d->pci, "%04llx:%02llx:%02llx.%llx", domain & 0xffff,
                   location >> 8 & 0xff, location >> 3 & 0x1f, location & 7);
    l->count++;
}

/* ROCR's variable thins out what HIP's (or, in its place, CUDA's) chooses from. */
static void list_amd(const struct devices_machine *p, struct device_list *l)
{
    const char *hip = env_get(p->envp, "HIP_VISIBLE_DEVICES");

    each_entry(p, "/sys/class/kfd/kfd/topology/nodes", add_kfd_node, l);
    visible_devices_filter(l, env_get(p->envp, "ROCR_VISIBLE_DEVICES"));
    visible_devices_filter(l, hip ? hip : env_get(p->envp, "CUDA_VISIBLE_DEVICES"));
}

void devices_gpus(const struct devices_machine *machine, struct device_list *out)
{
    out->count = 0;
    list_nvidia(machine, out);
    if (out->count == 0)
        list_amd(machine, out);
}

/* Intel */

typedef int (*ze_init_fn)(unsigned flags);
typedef int (*ze_list_fn)(unsigned *n, void **drivers);
typedef int (*ze_devices_fn)(void *driver, unsigned *n, void **devices);

/* The loader has applied ZE_AFFINITY_MASK itself. -1: no loader. */
static int64_t count_level0(const struct devices_machine *p)
{
    const ze_init_fn init = (ze_init_fn)symbol(p, LEVEL0, "zeInit");
    const ze_list_fn list = (ze_list_fn)symbol(p, LEVEL0, "zeDriverGet");
    const ze_devices_fn devices = (ze_devices_fn)symbol(p, LEVEL0, "zeDeviceGet");
    void *drivers[8];
    unsigned n = ARRAY_LEN(drivers);
    int64_t total = 0;

    if (!init || !list || !devices || init(1 /* GPUs only */) != 0)
        return -1;
    if (list(&n, drivers) != 0)
        return -1;
    for (unsigned i = 0; i < n && i < ARRAY_LEN(drivers); i++) {
        unsigned count = 0;

        if (devices(drivers[i], &count, NULL) == 0)
            total += count;
    }
    return total;
}

static void add_intel_card(const char *path, const char *name, struct device_list *l)
{
    char file[PATH_MAX + 400], text[64];

    if (strncmp(name, "renderD", 7) != 0)
        return;
    (void)snprintf(file, sizeof file, "%s/device/vendor", path);
    if (file_read(file, text, sizeof text) >= 0 && strncmp(text, "0x8086", 6) == 0)
        l->items[l->count++] = (struct device){ 0 };
}

static int64_t count_intel(const struct devices_machine *p, struct device_list *scratch)
{
    const int64_t n = count_level0(p);

    if (n >= 0)
        return n;
    scratch->count = 0;
    each_entry(p, "/sys/class/drm", add_intel_card, scratch);
    return (int64_t)visible_devices_intel(env_get(p->envp, "ZE_AFFINITY_MASK"),
                                          scratch->count);
}

/* The affinity mask, as torchrun counts; */
static int64_t count_allowed(void)
{
    for (size_t max = 1024; max <= 1 << 20; max *= 4) {
        cpu_set_t *set = CPU_ALLOC(max);
        const size_t size = CPU_ALLOC_SIZE(max);
        const int rc = set ? sched_getaffinity(0, size, set) : -1;
        const int n = rc == 0 ? CPU_COUNT_S(size, set) : 0;

        CPU_FREE(set);
        if (n > 0)
            return n;
    }
    return sysconf(_SC_NPROCESSORS_ONLN);
}

/* and no more than the control group gives time for: in a container with 2 CPUs of a
 * machine that has 128, so many workers would stand in each other's way. */
static int64_t count_cpus(const struct devices_machine *p)
{
    const int64_t allowed = count_allowed(), limit = cgroup_cpus(p->root);

    return limit > 0 && limit < allowed ? limit : allowed;
}

int devices_count(const struct devices_machine *machine, const char *word, int64_t *n,
                  struct muster_error *err)
{
    const bool automatic = strcmp(word, "auto") == 0;
    struct device_list l;
    int64_t count = 0;

    if (automatic || strcmp(word, "gpu") == 0) {
        devices_gpus(machine, &l);
        count = (int64_t)l.count;
        if (!automatic && count == 0)
            return err_set(err, MUSTER_EINVAL,
                           "Cuda is not available.\n"
                           "No NVIDIA or AMD device is visible here: look at "
                           "CUDA_VISIBLE_DEVICES and the driver, or give a number.");
    }
    if (count == 0 && (automatic || strcmp(word, "xpu") == 0)) {
        count = count_intel(machine, &l);
        if (!automatic && count == 0)
            return err_set(err, MUSTER_EINVAL,
                           "Xpu is not available.\n"
                           "No Intel device is visible here: look at ZE_AFFINITY_MASK "
                           "and the driver, or give a number.");
    }
    *n = count ? count : count_cpus(machine);
    return 0;
}
