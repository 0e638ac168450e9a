/* visible_devices.h - which devices a variable such as CUDA_VISIBLE_DEVICES leaves to
 * us. Pure.
 *
 * The rules are those of NVIDIA's driver, which torch follows too: numbers or unique
 * beginnings of UUIDs between commas; the first that names no device ends the list, and
 * a device named twice makes it empty. AMD's variables follow the same rules. */
#ifndef PROCESS_CORE_VISIBLE_DEVICES_H
#define PROCESS_CORE_VISIBLE_DEVICES_H

#include "base/base.h"

#define DEVICE_MAX 256

struct device {
    char uuid[96]; /* "GPU-..."; "" if unknown */
    char pci[32];  /* "0000:41:00.0"; "" if unknown */
};

struct device_list {
    struct device items[DEVICE_MAX];
    size_t count;
};

/* Leaves the visible ones, in the order in which the variable names them. NULL leaves
 * all. */
void visible_devices_filter(struct device_list *l, const char *variable);

/* True for a list of parts of devices ("MIG-..."): only the driver knows those. */
bool visible_devices_is_mig(const char *variable);

/* How many of n devices ZE_AFFINITY_MASK (Intel: "0,1.2,3") leaves: each distinct entry
 * whose device exists. NULL and "" leave all. */
size_t visible_devices_intel(const char *mask, size_t n);

#endif
