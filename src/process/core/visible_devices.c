/* visible_devices.c - see visible_devices.h. */
#include "process/core/visible_devices.h"

/* The number that an item begins with, as strtoul has it ("1gpu" is 1); -1: none. */
static int64_t leading_number(const char *p, size_t n)
{
    int64_t v = 0;
    size_t i = 0;

    while (n && (*p == ' ' || *p == '\t'))
        p++, n--;
    if (n && *p == '+')
        p++, n--;
    for (; i < n && p[i] >= '0' && p[i] <= '9' && v < DEVICE_MAX; i++)
        v = v * 10 + (p[i] - '0');
    return i ? v : -1;
}

/* The one device whose UUID begins so; -1: none, or several. */
static int64_t by_uuid(const struct device_list *l, const char *p, size_t n)
{
    int64_t found = -1;

    for (size_t i = 0; i < l->count; i++) {
        if (strncmp(l->items[i].uuid, p, n) != 0)
            continue;
        if (found >= 0)
            return -1;
        found = (int64_t)i;
    }
    return found;
}

static bool is_uuid(const char *p, size_t n)
{
    return n >= 4 && strncmp(p, "GPU-", 4) == 0;
}

bool visible_devices_is_mig(const char *variable)
{
    return variable && strncmp(variable, "MIG-", 4) == 0;
}

void visible_devices_filter(struct device_list *l, const char *variable)
{
    struct device_list out;
    bool taken[DEVICE_MAX] = { false };

    if (!variable)
        return;
    out.count = 0;
    for (const char *p = variable;; p++) {
        const size_t n = strcspn(p, ",");
        const int64_t i = is_uuid(p, n) ? by_uuid(l, p, n) : leading_number(p, n);

        if (i < 0 || (size_t)i >= l->count)
            break;
        if (taken[i]) {
            l->count = 0;
            return;
        }
        taken[i] = true;
        out.items[out.count++] = l->items[i];
        p += n;
        if (*p == '\0')
            break;
    }
    memcpy(l->items, out.items, out.count * sizeof out.items[0]);
    l->count = out.count;
}

size_t visible_devices_intel(const char *mask, size_t n)
{
    size_t count = 0;

    if (!mask || !*mask)
        return n;
    for (const char *p = mask; *p;) {
        const size_t len = strcspn(p, ",");
        const int64_t device = leading_number(p, len);
        bool again = false;

        for (const char *q = mask; q < p && !again; q += strcspn(q, ",") + 1)
            again = strcspn(q, ",") == len && strncmp(q, p, len) == 0;
        if (device >= 0 && (size_t)device < n && !again)
            count++;
        p += len + (p[len] == ',');
    }
    return count;
}
