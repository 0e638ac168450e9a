/* test_devices.c - counting devices on trees and libraries that the test makes up. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "process/devices.h"
#include "testing.h"

static void test_visible(void **state)
{
    static const struct {
        const char *variable, *want; /* which of the four devices, in order */
    } rows[] = {
        { NULL, "0123" },
        { "", "" },
        { "0,1", "01" },
        { "3,1", "31" },
        { "1, 2", "12" },
        { "0,-1,2", "0" },
        { "-1", "" },
        { "0,9,1", "0" },
        { "1,1", "" },
        { "0,x,1", "0" },
        { "1gpu,2", "12" },
        { "GPU-aa", "0" },
        { "GPU-b", "" },
        { "GPU-bb1,GPU-cc", "12" },
        { "GPU-bb1,GPU-bb1", "" },
        { "GPU-cc,GPU-zz", "2" },
        { "2,", "2" },
        { "NoDevFiles", "" },
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct device_list l = {
            .items = { { "GPU-aa1", "0" },
                       { "GPU-bb1", "1" },
                       { "GPU-cc1", "2" },
                       { "GPU-bb2", "3" } },
            .count = 4,
        };
        char got[8] = "";

        visible_devices_filter(&l, rows[i].variable);
        for (size_t k = 0; k < l.count; k++)
            got[k] = l.items[k].pci[0];
        if (strcmp(got, rows[i].want) != 0)
            fail_msg("%s: want %s, got %s", rows[i].variable, rows[i].want, got);
    }
}

static void test_intel_mask(void **state)
{
    (void)state;
    assert_int_equal(visible_devices_intel(NULL, 3), 3);
    assert_int_equal(visible_devices_intel("", 3), 3);
    assert_int_equal(visible_devices_intel("0,2", 3), 2);
    assert_int_equal(visible_devices_intel("0,0,7", 3), 1);
    assert_int_equal(visible_devices_intel("0.0,0.1", 1), 2);
    assert_int_equal(visible_devices_intel("x", 1), 0);
}

static char root[] = "/tmp/muster-devices-XXXXXX";

static void put(const char *path, const char *text)
{
    char full[512];
    FILE *f;

    (void)snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *p = full + 1; *p; p++)
        if (*p == '/') {
            *p = '\0';
            (void)mkdir(full, 0755);
            *p = '/';
        }
    f = fopen(full, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static int make_tree(void **state)
{
    (void)state;
    return mkdtemp(root) ? 0 : -1;
}

static int remove_tree(void **state)
{
    char line[sizeof root + 16];

    (void)state;
    (void)snprintf(line, sizeof line, "rm -rf %s", root);
    return system(line);
}

static void *no_library(void *ctx, const char *library, const char *name)
{
    (void)ctx, (void)library, (void)name;
    return NULL;
}

/* An NVML of two devices. */
static int nvml_ok(void)
{
    return 0;
}

static int nvml_count(unsigned *n)
{
    *n = 2;
    return 0;
}

static int nvml_handle(unsigned i, void **device)
{
    *device = (void *)(uintptr_t)(i + 1);
    return 0;
}

static int nvml_uuid(void *device, char *text, unsigned size)
{
    (void)snprintf(text, size, "GPU-%zx", (size_t)(uintptr_t)device);
    return 0;
}

static int nvml_name(void *device, char *text, unsigned size)
{
    (void)snprintf(text, size, "NVIDIA H100 %zu", (size_t)(uintptr_t)device);
    return 0;
}

static int nvml_busy(void *device, unsigned of[2])
{
    of[0] = 90 + (unsigned)(uintptr_t)device;
    of[1] = 7;
    return 0;
}

static int nvml_memory(void *device, unsigned long long of[3])
{
    of[0] = 80ull << 30;
    of[2] = (unsigned long long)(uintptr_t)device << 30;
    of[1] = of[0] - of[2];
    return 0;
}

static int nvml_heat(void *device, int sensor, unsigned *celsius)
{
    *celsius = 60;
    return (uintptr_t)device == 2 ? 3 /* not supported */ : sensor;
}

/* A driver of three. */
static int cuda_init(unsigned flags)
{
    return (int)flags;
}

static int cuda_count(int *n)
{
    *n = 3;
    return 0;
}

static int cuda_pci(char *text, int size, int device)
{
    (void)snprintf(text, (size_t)size, "0000:A%d:00.0", device);
    return 0;
}

static int ze_list(unsigned *n, void **drivers)
{
    *n = 1;
    drivers[0] = drivers;
    return 0;
}

static int ze_devices(void *driver, unsigned *n, void **devices)
{
    (void)driver, (void)devices;
    *n = 5;
    return 0;
}

/* ctx: the names of libraries that are there. */
static void *some_libraries(void *ctx, const char *library, const char *name)
{
    static const struct {
        const char *name;
        void *fn;
    } rows[] = {
        { "nvmlInit_v2", (void *)nvml_ok },
        { "nvmlShutdown", (void *)nvml_ok },
        { "nvmlDeviceGetCount_v2", (void *)nvml_count },
        { "nvmlDeviceGetHandleByIndex_v2", (void *)nvml_handle },
        { "nvmlDeviceGetUUID", (void *)nvml_uuid },
        { "nvmlDeviceGetName", (void *)nvml_name },
        { "nvmlDeviceGetUtilizationRates", (void *)nvml_busy },
        { "nvmlDeviceGetMemoryInfo", (void *)nvml_memory },
        { "nvmlDeviceGetTemperature", (void *)nvml_heat },
        { "cuInit", (void *)cuda_init },
        { "cuDeviceGetCount", (void *)cuda_count },
        { "cuDeviceGetPCIBusId", (void *)cuda_pci },
        { "zeInit", (void *)nvml_ok },
        { "zeDriverGet", (void *)ze_list },
        { "zeDeviceGet", (void *)ze_devices },
    };

    for (size_t i = 0; strstr(ctx, library) && i < ARRAY_LEN(rows); i++)
        if (strcmp(rows[i].name, name) == 0)
            return rows[i].fn;
    return NULL;
}

static int64_t count(const char *libraries, const char *word, const char *variable)
{
    char *const envp[] = { (char *)(uintptr_t)variable, NULL };
    const struct devices_machine p = { root, libraries ? some_libraries : no_library,
                                       (void *)(uintptr_t)libraries, envp };
    struct muster_error err;
    int64_t n = -1;

    if (devices_count(&p, word, &n, &err))
        return -1;
    return n;
}

static void test_libraries(void **state)
{
    (void)state;
    assert_int_equal(count("libnvidia-ml.so.1 libcuda.so.1", "gpu", NULL), 2);
    assert_int_equal(count("libnvidia-ml.so.1", "gpu", "CUDA_VISIBLE_DEVICES=1"), 1);
    assert_int_equal(count("libnvidia-ml.so.1", "auto", "CUDA_VISIBLE_DEVICES=GPU-2"),
                     1);
    assert_int_equal(count("libcuda.so.1", "gpu", NULL), 3);
    assert_int_equal(
        count("libnvidia-ml.so.1 libcuda.so.1", "gpu", "CUDA_VISIBLE_DEVICES=MIG-x"),
        3);
    assert_int_equal(count("libze_loader.so.1", "xpu", NULL), 5);
    assert_int_equal(count("libze_loader.so.1", "auto", NULL), 5);
    assert_int_equal(count("libze_loader.so.1", "gpu", NULL), -1);
}

static void test_what_gpus_do(void **state)
{
    char *const envp[] = { NULL };
    const struct devices_machine there = { root, some_libraries,
                                           (void *)(uintptr_t) "libnvidia-ml.so.1",
                                           envp },
                                 none = { root, no_library, NULL, envp };
    struct device_use u[4];

    (void)state;
    assert_int_equal(devices_use(&none, u, 4), 0);
    assert_int_equal(devices_use(&there, u, 1), 1);
    assert_int_equal(devices_use(&there, u, 4), 2);
    assert_string_equal(u[1].name, "NVIDIA H100 2");
    assert_int_equal(u[1].busy, 92);
    assert_int_equal(u[1].memory, 2ull << 30);
    assert_int_equal(u[1].memory_total, 80ull << 30);
    assert_int_equal(u[0].celsius, 60);
    assert_int_equal(u[1].celsius, 0); /* Its driver does not tell. */
}

static void test_nothing_there(void **state)
{
    (void)state;
    assert_int_equal(count(NULL, "gpu", NULL), -1);
    assert_int_equal(count(NULL, "xpu", NULL), -1);
    assert_true(count(NULL, "cpu", NULL) >= 1);
    assert_int_equal(count(NULL, "auto", NULL), count(NULL, "cpu", NULL));
}

static void test_a_container_with_one_cpu(void **state)
{
    (void)state;
    put("proc/self/cgroup", "0::/\n");
    put("proc/self/mountinfo", "29 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n");
    put("sys/fs/cgroup/cpu.max", "70000 100000\n");
    assert_int_equal(count(NULL, "cpu", NULL), 1);
    assert_int_equal(count(NULL, "auto", NULL), 1);
}

static void test_trees(void **state)
{
    (void)state;
    put("sys/class/kfd/kfd/topology/nodes/0/properties",
        "cpu_cores_count 8\nsimd_count 0\n");
    put("sys/class/kfd/kfd/topology/nodes/1/properties",
        "simd_count 256\nlocation_id 768\ndomain 0\nunique_id 255\n");
    put("sys/class/kfd/kfd/topology/nodes/2/properties",
        "simd_count 256\nlocation_id 1024\ndomain 0\nunique_id 256\n");
    assert_int_equal(count(NULL, "gpu", NULL), 2);
    assert_int_equal(count(NULL, "gpu", "HIP_VISIBLE_DEVICES=1"), 1);
    assert_int_equal(count(NULL, "gpu", "ROCR_VISIBLE_DEVICES=GPU-00000000000000ff"),
                     1);
    assert_int_equal(count(NULL, "gpu", "CUDA_VISIBLE_DEVICES="), -1);

    put("sys/class/drm/renderD128/device/vendor", "0x8086\n");
    put("sys/class/drm/renderD129/device/vendor", "0x10de\n");
    put("sys/class/drm/card0/device/vendor", "0x8086\n");
    assert_int_equal(count(NULL, "xpu", NULL), 1);

    put("proc/driver/nvidia/gpus/0000:41:00.0/information",
        "Model: \t\t A100\nGPU UUID: \t GPU-1234\n");
    put("proc/driver/nvidia/gpus/0000:81:00.0/information", "GPU UUID: \t GPU-5678\n");
    put("proc/driver/nvidia/gpus/0000:c1:00.0/information", "GPU UUID: \t GPU-9abc\n");
    assert_int_equal(count(NULL, "gpu", NULL), 3);
    assert_int_equal(count(NULL, "auto", "CUDA_VISIBLE_DEVICES=GPU-56"), 1);

    char *const envp[] = { (char *)"CUDA_VISIBLE_DEVICES=2,GPU-1234", NULL };
    const struct devices_machine p = { root, no_library, NULL, envp };
    struct device_list l;

    devices_gpus(&p, &l);
    assert_int_equal(l.count, 2);
    assert_string_equal(l.items[0].pci, "0000:c1:00.0");
    assert_string_equal(l.items[1].uuid, "GPU-1234");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_visible),
        cmocka_unit_test(test_intel_mask),
        cmocka_unit_test_setup_teardown(test_libraries, make_tree, NULL),
        cmocka_unit_test(test_what_gpus_do),
        cmocka_unit_test(test_nothing_there),
        cmocka_unit_test(test_a_container_with_one_cpu),
        cmocka_unit_test_teardown(test_trees, remove_tree),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
