/* read_interfaces.c - see read_interfaces.h. */
#include "net/read_interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>

#include "base/mem.h"

_Static_assert(INTERFACE_NAME == IF_NAMESIZE, "as the system has it");

/* How many bits a netmask sets, counted as in struct interface. */
static unsigned mask_bits(const struct sockaddr *mask)
{
    uint8_t m[16];
    unsigned bits = 0;

    if (!mask || !ip_of_sockaddr(mask, m))
        return 128;
    if (mask->sa_family == AF_INET)
        memset(m, 0xff, 12);
    while (bits < 128 && (m[bits / 8] & (0x80 >> bits % 8)))
        bits++;
    return bits;
}

void interfaces_read(struct interfaces *out)
{
    struct ifaddrs *all;
    size_t n = 0;

    *out = (struct interfaces){ 0 };
    if (getifaddrs(&all) != 0)
        return;
    for (const struct ifaddrs *i = all; i; i = i->ifa_next)
        n++;
    out->items = n ? mem_calloc(n, sizeof *out->items) : NULL;
    for (const struct ifaddrs *i = all; i && out->items; i = i->ifa_next) {
        struct interface *e = &out->items[out->count];

        if (!i->ifa_addr || !ip_of_sockaddr(i->ifa_addr, e->ip))
            continue;
        (void)snprintf(e->name, sizeof e->name, "%s", i->ifa_name);
        e->bits = mask_bits(i->ifa_netmask);
        e->up = (i->ifa_flags & IFF_UP) != 0;
        out->count++;
    }
    freeifaddrs(all);
}

void interfaces_free(struct interfaces *all)
{
    mem_free(all->items);
    *all = (struct interfaces){ 0 };
}

bool interface_here(const struct sockaddr *sa, char name[INTERFACE_NAME])
{
    struct interfaces all;
    uint8_t ip[16];

    if (!ip_of_sockaddr(sa, ip))
        return false;
    interfaces_read(&all);
    const struct interface *found = interface_with(&all, ip);

    if (found && name)
        memcpy(name, found->name, sizeof found->name);
    interfaces_free(&all);
    return found != NULL;
}
