/* find_self.c - see find_self.h. */
#include "etcd/serve/find_self.h"

#include <netdb.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "rendezvous/local_identity.h"

struct serve_find *serve_find_new(const struct serve_hosts *hosts,
                                  const char *local_addr)
{
    struct serve_find *f = mem_calloc(1, sizeof *f);

    if (!f)
        return NULL;
    f->count = hosts->count;
    snprintf(f->local_addr, sizeof f->local_addr, "%s", local_addr ? local_addr : "");
    for (size_t i = 0; i < f->count; i++)
        snprintf(f->hosts[i].host, sizeof f->hosts[i].host, "%s", hosts->items[i].host);
    return f;
}

void serve_find_self(void *find)
{
    struct serve_find *f = find;

    for (size_t i = 0; i < f->count; i++) {
        const struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
        struct addrinfo *list = NULL;
        struct rdzv_local local = { 0 };

        if (getaddrinfo(f->hosts[i].host, NULL, &hints, &list) != 0 || !list)
            continue;
        (void)getnameinfo(list->ai_addr, list->ai_addrlen, f->hosts[i].address,
                          sizeof f->hosts[i].address, NULL, 0, NI_NUMERICHOST);
        freeaddrinfo(list);
        if (f->local_addr[0]) {
            f->hosts[i].ours = strcmp(f->local_addr, f->hosts[i].host) == 0 ||
                               strcmp(f->local_addr, f->hosts[i].address) == 0;
            continue;
        }
        snprintf(local.host, sizeof local.host, "%s", f->hosts[i].host);
        if (!rdzv_local_quick(&local))
            rdzv_local_resolve(&local);
        f->hosts[i].ours = local.is_local;
    }
}

size_t serve_found(const struct serve_find *f)
{
    size_t i = 0;

    while (i < f->count && !f->hosts[i].ours)
        i++;
    return i;
}
