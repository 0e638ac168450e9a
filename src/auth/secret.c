/* secret.c - see secret.h. */
#include "auth/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "auth/munge_dl.h"
#include "auth/openssl_dl.h"
#include "base/err.h"
#include "loop/clock.h"
#include "net/read_interfaces.h"

static void hmac_sha256(const uint8_t *key, size_t key_size, struct span data,
                        uint8_t out[AUTH_PROOF])
{
    unsigned n = AUTH_PROOF;

    (void)DL(HMAC)(DL(EVP_sha256)(), key, (int)key_size, data.p, data.n, out, &n);
}

void secret_random(void *to, size_t size)
{
    uint8_t *p = to;

    while (size) {
        const ssize_t n = getrandom(p, MIN_OF(size, 256u), 0);

        if (n < 0 && errno != EINTR)
            abort(); /* There is no safe substitute, and every kernel has it. */
        if (n > 0) {
            p += n;
            size -= (size_t)n;
        }
    }
}

static size_t find_addresses(uint8_t out[AUTH_ADDRESSES][16])
{
    struct interfaces all;
    size_t n = 0;

    interfaces_read(&all);
    for (size_t i = 0; i < all.count && n < AUTH_ADDRESSES; i++)
        if (!ip_is_loopback(all.items[i].ip))
            memcpy(out[n++], all.items[i].ip, 16);
    interfaces_free(&all);
    return n;
}

void secret_addresses(struct auth *a)
{
    const uint64_t now = clock_mono_ms();

    if (a->addresses_ms && now - a->addresses_ms < 1000)
        return;
    a->address_count = find_addresses(a->addresses);
    a->addresses_ms = now ? now : 1;
}

/* Checks and reads the token through one descriptor, so that nobody can replace the
 * file in between. */
static int read_token(const char *path, char *to, size_t room, size_t *size,
                      struct muster_error *err)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    struct stat st;
    ssize_t n;
    int rc = 0;

    if (fd < 0)
        return err_set(err, MUSTER_EINVAL,
                       "token file %s: %s; it must exist on every node and be readable "
                       "by the user who starts the job",
                       path, strerror(errno));
    if (fstat(fd, &st) < 0 || S_ISDIR(st.st_mode))
        rc = err_set(err, MUSTER_EINVAL, "token file %s: not a file", path);
    else if (S_ISREG(st.st_mode) && (st.st_mode & 077))
        rc = err_set(err, MUSTER_EINVAL,
                     "token file %s: others may read or change it (mode %04o); "
                     "`chmod 600 %s`",
                     path, st.st_mode & 07777, path);
    else if (S_ISREG(st.st_mode) && st.st_uid != geteuid() && st.st_uid != 0)
        rc = err_set(err, MUSTER_EINVAL,
                     "token file %s: it belongs to user %u, not to the one who starts "
                     "the job",
                     path, (unsigned)st.st_uid);
    *size = 0;
    while (rc == 0 && *size < room) { /* A pipe may deliver it in pieces. */
        n = read(fd, to + *size, room - *size);
        if (n == 0)
            break;
        if (n > 0)
            *size += (size_t)n;
        else if (errno != EINTR)
            rc =
                err_set(err, MUSTER_EINVAL, "token file %s: %s", path, strerror(errno));
    }
    if (rc == 0 && *size == 0)
        rc = err_set(err, MUSTER_EINVAL,
                     "token file %s: it is empty (`openssl rand -hex 32 > %s` makes a "
                     "token)",
                     path, path);
    (void)close(fd);
    return rc;
}

static void put_name(struct auth *a)
{
    char host[128] = "?";

    (void)gethostname(host, sizeof host - 1);
    (void)snprintf(a->name, sizeof a->name, "%s pid %ld", host, (long)getpid());
}

int secret_load(const struct secret_opts *o, struct auth **out,
                struct muster_error *err)
{
    unsigned flags = o->encrypt ? AUTH_ENCRYPT : 0;
    const char *token = getenv("MUSTER_TOKEN");
    char room[AUTH_TOKEN_MOST + 64], from[300];
    size_t size = 0;
    int rc = 0;

    *out = NULL;
    if (o->token_file && *o->token_file) {
        (void)snprintf(from, sizeof from, "token file %.280s", o->token_file);
        rc = read_token(o->token_file, room, sizeof room, &size, err);
    } else if (token) {
        (void)snprintf(from, sizeof from, "MUSTER_TOKEN");
        size = MIN_OF(strlen(token), sizeof room);
        memcpy(room, token, size);
    } else if (o->munge && munge_available(err) == 0) {
        (void)snprintf(from, sizeof from, "munge");
        flags |= AUTH_MUNGE;
    } else if (o->munge > 0) {
        return err_wrap(err, "munge=1 is given");
    } else if (o->encrypt || o->optional) {
        return err_set(err, MUSTER_EINVAL,
                       "%s needs a secret: give --token-file=FILE, or set MUSTER_TOKEN",
                       o->encrypt ? "--encrypt" : "--token-optional");
    } else {
        return 0;
    }
    if (rc == 0 && o->encrypt && o->optional)
        rc = err_set(err, MUSTER_EINVAL,
                     "--encrypt and --token-optional exclude each other: torchrun's "
                     "nodes cannot encrypt");
    if (rc == 0)
        rc = o->encrypt ? ssl_dl_load(err) : crypto_dl_load(err);
    if (rc == 0)
        rc = auth_new(hmac_sha256, span_of(room, size), o->run_id, flags, from, out,
                      err);
    explicit_bzero(room, sizeof room);
    if (rc < 0)
        return rc;
    (*out)->optional = o->optional;
    put_name(*out);
    return 0;
}
