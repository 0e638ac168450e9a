/* rdzv_store.c - the store that the nodes meet at, and what it costs. */
#include <inttypes.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/base.h"
#include "net.h"
#include "rdzv.h"
#include "store/core/wire.h"

static const char stats_key[] = "/\x01muster/stats";

pid_t rdzv_store_start(struct rdzv_options *o)
{
    char file[] = "/tmp/muster-bench-XXXXXX";
    const int fd = mkstemp(file);
    char text[32] = "";
    pid_t pid;

    if (fd < 0)
        return -1;
    pid = fork();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr))
            _exit(127);
        execl(o->muster, o->muster, "store", "--bind", "127.0.0.1", "--port", "0",
              "--port-file", file, (char *)NULL);
        _exit(127);
    }
    for (int i = 0; i < 5000; i++) {
        (void)usleep(1000);
        memset(text, 0, sizeof text);
        FILE *f = fopen(file, "r");

        if (f && !fgets(text, sizeof text, f))
            text[0] = '\0';
        if (f)
            (void)fclose(f);
        if (text[0] && strtol(text, NULL, 10) > 0)
            break;
    }
    (void)close(fd);
    (void)unlink(file);
    o->port = (uint16_t)strtol(text, NULL, 10);
    (void)snprintf(o->host, sizeof o->host, "127.0.0.1");
    return o->port ? pid : -1;
}

double rdzv_store_cpu_s(pid_t pid)
{
    return pid > 0 ? (double)net_cpu_ns(pid) * 1e-9 : 0;
}

long rdzv_store_peak_kb(pid_t pid)
{
    char path[64], text[256];
    long kb = 0;
    FILE *f;

    if (pid <= 0)
        return 0;
    (void)snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    f = fopen(path, "r");
    while (f && fgets(text, sizeof text, f))
        (void)sscanf(text, "VmHWM: %ld", &kb);
    if (f)
        (void)fclose(f);
    return kb;
}

static int dial(const struct rdzv_options *o)
{
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
    struct addrinfo *found;
    char port[8];
    int fd = -1;

    (void)snprintf(port, sizeof port, "%u", o->port);
    if (getaddrinfo(o->host, port, &hints, &found) != 0)
        return -1;
    for (const struct addrinfo *a = found; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype, a->ai_protocol);
        if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) < 0) {
            (void)close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(found);
    return fd;
}

/* CHECK first: a GET of a key that torch's store does not have would wait for it. */
bool rdzv_store_stats(const struct rdzv_options *o, struct rdzv_stats *out)
{
    static const char caps_key[] = "/\x01muster/caps";
    struct message m = { .n = 0 };
    char text[256] = "";
    uint32_t nonce;
    uint8_t word[8];
    const int fd = dial(o);

    if (fd < 0)
        return false;
    message_hello(&m, 7);
    message_u8(&m, C10D_CHECK);
    message_u64(&m, 1);
    message_bytes(&m, caps_key, sizeof caps_key - 1);
    net_send(fd, m.bytes, m.n);
    net_take(fd, &nonce, sizeof nonce);
    net_take(fd, word, 1);
    if (word[0] == 0) { /* READY */
        m.n = 0;
        message_u8(&m, C10D_GET);
        message_bytes(&m, stats_key, sizeof stats_key - 1);
        net_send(fd, m.bytes, m.n);
        net_take(fd, word, sizeof word);
        net_take(fd, text, (size_t)MIN_OF(get_u64(word), sizeof text - 1));
    }
    (void)close(fd);
    return sscanf(text,
                  "requests %" SCNu64 " answers %" SCNu64 " bytes_in %" SCNu64
                  " bytes_out %" SCNu64,
                  &out->requests, &out->answers, &out->bytes_in, &out->bytes_out) == 4;
}
