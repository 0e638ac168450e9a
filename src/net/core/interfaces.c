/* interfaces.c - see interfaces.h. */
#include "net/core/interfaces.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/err.h"

static const uint8_t v4_mapped[12] = { [10] = 0xff, [11] = 0xff };

static bool is_v4(const uint8_t ip[16])
{
    return memcmp(ip, v4_mapped, sizeof v4_mapped) == 0;
}

bool ip_of_sockaddr(const struct sockaddr *sa, uint8_t ip[16])
{
    if (sa->sa_family == AF_INET6) {
        memcpy(ip, &((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr, 16);
        return true;
    }
    if (sa->sa_family != AF_INET)
        return false;
    memcpy(ip, v4_mapped, sizeof v4_mapped);
    memcpy(ip + 12, &((const struct sockaddr_in *)(const void *)sa)->sin_addr, 4);
    return true;
}

bool ip_of_text(const char *text, uint8_t ip[16])
{
    char numeric[IP_TEXT];
    uint8_t v4[4];

    (void)snprintf(numeric, sizeof numeric, "%.*s", (int)strcspn(text, "%"), text);
    if (inet_pton(AF_INET6, numeric, ip) == 1)
        return true;
    if (inet_pton(AF_INET, text, v4) != 1)
        return false;
    memcpy(ip, v4_mapped, sizeof v4_mapped);
    memcpy(ip + 12, v4, sizeof v4);
    return true;
}

void ip_text(const uint8_t ip[16], char out[IP_TEXT])
{
    (void)inet_ntop(is_v4(ip) ? AF_INET : AF_INET6, is_v4(ip) ? ip + 12 : ip, out,
                    IP_TEXT);
}

bool ip_is_loopback(const uint8_t ip[16])
{
    static const uint8_t v6[16] = { [15] = 1 };

    return is_v4(ip) ? ip[12] == 127 : memcmp(ip, v6, 16) == 0;
}

const struct interface *interface_with(const struct interfaces *all,
                                       const uint8_t ip[16])
{
    for (size_t i = 0; i < all->count; i++)
        if (memcmp(all->items[i].ip, ip, 16) == 0)
            return &all->items[i];
    return NULL;
}

#define LIST_MAX 700 /* what an error has room for; a machine may have hundreds */

/* "eth0 10.1.0.7/16, lo 127.0.0.1/8", without link-local addresses. */
static void interfaces_list(struct buf *b, const struct interfaces *all)
{
    for (size_t i = 0; i < all->count; i++) {
        const struct interface *e = &all->items[i];
        char text[IP_TEXT];

        if (e->ip[0] == 0xfe && (e->ip[1] & 0xc0) == 0x80)
            continue;
        if (buf_len(b) > LIST_MAX) {
            (void)buf_printf(b, ", ...");
            return;
        }
        ip_text(e->ip, text);
        (void)buf_printf(b, "%s%s %s/%u%s", buf_len(b) ? ", " : "", e->name, text,
                         is_v4(e->ip) ? e->bits - 96 : e->bits, e->up ? "" : " (down)");
    }
}

static bool in_network(const uint8_t ip[16], const uint8_t net[16], unsigned bits)
{
    const unsigned whole = bits / 8, rest = bits % 8;

    return memcmp(ip, net, whole) == 0 &&
           (rest == 0 || (ip[whole] ^ net[whole]) >> (8 - rest) == 0);
}

/* "10.1.0.0/16", or one address. */
static bool parse_network(const char *text, uint8_t ip[16], unsigned *bits)
{
    const char *slash = strchr(text, '/');
    const size_t digits = slash ? strspn(slash + 1, "0123456789") : 0;
    char address[IP_TEXT];

    *bits = 128;
    if (!slash)
        return ip_of_text(text, ip);
    if ((size_t)(slash - text) >= sizeof address || digits < 1 || digits > 3 ||
        slash[1 + digits])
        return false;
    (void)snprintf(address, sizeof address, "%.*s", (int)(slash - text), text);
    if (!ip_of_text(address, ip))
        return false;
    *bits = (unsigned)strtoul(slash + 1, NULL, 10) + (is_v4(ip) ? 96u : 0u);
    return *bits <= 128;
}

static int interfaces_refuse(const struct interfaces *all, const char *net,
                             const char *why, struct muster_error *err)
{
    struct buf b;

    buf_init(&b, LIST_MAX + 100);
    interfaces_list(&b, all);
    (void)buf_u8(&b, 0);
    const int rc =
        err_set(err, MUSTER_EINVAL, "--net=%s: %s. This machine has: %s", net, why,
                buf_len(&b) > 1 ? (const char *)buf_data(&b) : "no interface");
    buf_fini(&b);
    return rc;
}

int interface_chosen(const struct interfaces *all, const char *net,
                     const struct interface **out, struct muster_error *err)
{
    const struct interface *found = NULL;
    uint8_t ip[16];
    unsigned bits;
    const bool numeric = parse_network(net, ip, &bits);

    for (size_t i = 0; i < all->count; i++) {
        const struct interface *e = &all->items[i];

        if (numeric ? !in_network(e->ip, ip, bits) : strcmp(e->name, net) != 0)
            continue;
        if (!found || (e->up && !found->up))
            found = e;
    }
    if (!found)
        return interfaces_refuse(
            all, net,
            numeric ? "no interface has an address in it"
                    : "there is no such interface, nor is it an address or a "
                      "network like 10.1.0.0/16",
            err);
    if (!found->up)
        return interfaces_refuse(all, net, "that interface is down", err);
    *out = found;
    return 0;
}
