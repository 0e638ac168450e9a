/* devices.h - counting CPUs and accelerators without torch.
 *
 * NVIDIA: NVML (or the driver, where NVML is missing or the devices are MIG parts),
 * else /proc/driver/nvidia. AMD: /sys/class/kfd. Intel: the Level Zero loader, else
 * sysfs. */
#ifndef PROCESS_DEVICES_H
#define PROCESS_DEVICES_H

#include "base/base.h"
#include "muster/error.h"
#include "process/core/visible_devices.h"

/* Where to look: tests give a tree of their own and functions in place of libraries. */
struct devices_machine {
    const char *root; /* before every path; "" on a real machine */
    /* The address of a function of a shared library, or NULL. */
    void *(*symbol)(void *ctx, const char *library, const char *name);
    void *ctx;
    char *const *envp;
};

struct devices_machine devices_real(char *const *envp);

/* How many workers a word (cpu, gpu, xpu, auto) stands for. MUSTER_EINVAL with torch's
 * words if there is no such device. */
int devices_count(const struct devices_machine *machine, const char *word, int64_t *n,
                  struct muster_error *err);

/* The GPUs that a process started here would see, in the order of their numbers. */
void devices_gpus(const struct devices_machine *machine, struct device_list *out);

/* What a GPU does now. What its driver does not tell is 0. */
struct device_use {
    char name[64];
    uint32_t busy; /* percent of the last moments in which it computed */
    uint32_t celsius;
    uint64_t memory, memory_total; /* bytes */
};

/* What all NVIDIA GPUs of the machine do, by NVML, in its order; at most size of them.
 * Returns how many. NVML stays initialized, so that asking again is quick. */
size_t devices_use(const struct devices_machine *machine, struct device_use *out,
                   size_t size);

#endif
