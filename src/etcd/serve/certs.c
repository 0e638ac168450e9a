/* certs.c - see certs.h. */
#include "etcd/serve/certs.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "auth/openssl_dl.h"
#include "auth/secret.h"
#include "base/err.h"
#include "base/mem.h"

#define SEED   32u
#define BEFORE (-86400L)           /* seconds: clocks may differ by a day */
#define AFTER  (10 * 365 * 86400L) /* longer than any job runs */
#define CA     "the CA of a muster job"

static int openssl_failed(const char *what, struct muster_error *err)
{
    return err_set(err, MUSTER_EIO, "certificates for etcd: OpenSSL cannot %s", what);
}

static EVP_PKEY *make_key(const uint8_t seed[SEED])
{
    return DL(EVP_PKEY_new_raw_private_key)(EVP_PKEY_ED25519, NULL, seed, SEED);
}

static EVP_PKEY *ca_key(const struct auth *auth)
{
    uint8_t seed[AUTH_PROOF];
    EVP_PKEY *key;

    auth->settings.hmac(auth->settings.key, AUTH_SECRET,
                        span_str("muster: key of the CA of the job's etcd, 1"), seed);
    key = make_key(seed);
    explicit_bzero(seed, sizeof seed);
    return key;
}

static EVP_PKEY *own_key(void)
{
    uint8_t seed[SEED];
    EVP_PKEY *key;

    secret_random(seed, sizeof seed);
    key = make_key(seed);
    explicit_bzero(seed, sizeof seed);
    return key;
}

static bool add_ext(X509 *x, int nid, const char *value)
{
    X509_EXTENSION *e = DL(X509V3_EXT_conf_nid)(NULL, NULL, nid, value);
    const bool good = e && DL(X509_add_ext)(x, e, -1) == 1;

    DL(X509_EXTENSION_free)(e);
    return good;
}

static bool set_name(X509 *x, const char *subject)
{
    X509_NAME *issuer = DL(X509_NAME_new)();
    X509_NAME *own = DL(X509_NAME_new)();
    const bool good =
        issuer && own &&
        DL(X509_NAME_add_entry_by_txt)(issuer, "CN", MBSTRING_ASC,
                                       (const unsigned char *)CA, -1, -1, 0) == 1 &&
        DL(X509_NAME_add_entry_by_txt)(
            own, "CN", MBSTRING_ASC, (const unsigned char *)subject, -1, -1, 0) == 1 &&
        DL(X509_set_issuer_name)(x, issuer) == 1 &&
        DL(X509_set_subject_name)(x, own) == 1;

    DL(X509_NAME_free)(issuer);
    DL(X509_NAME_free)(own);
    return good;
}

/* names: those of a server, or NULL. The CA signs its own certificate. */
static X509 *make_cert(EVP_PKEY *key, EVP_PKEY *ca, bool is_ca, const char *names)
{
    X509 *x = DL(X509_new)();
    uint64_t serial = 0;
    bool good;

    secret_random(&serial, sizeof serial);
    good = x && DL(X509_set_version)(x, 2) == 1 &&
           DL(ASN1_INTEGER_set_uint64)(DL(X509_get_serialNumber)(x), serial >> 1 | 1) ==
               1 &&
           DL(X509_gmtime_adj)(DL(X509_getm_notBefore)(x), BEFORE) &&
           DL(X509_gmtime_adj)(DL(X509_getm_notAfter)(x), AFTER) &&
           DL(X509_set_pubkey)(x, key) == 1 &&
           set_name(x, is_ca ? CA : "a node of a muster job");
    if (good && is_ca)
        good = add_ext(x, NID_basic_constraints, "critical,CA:TRUE") &&
               add_ext(x, NID_key_usage, "critical,keyCertSign");
    if (good && names)
        good = add_ext(x, NID_subject_alt_name, names);
    if (good)
        good = DL(X509_sign)(x, ca, NULL) > 0;
    if (good)
        return x;
    DL(X509_free)(x);
    return NULL;
}

/* Makes "DNS:h1,IP:10.0.0.1". OpenSSL parses this text, so a host name with other
 * characters is refused. */
static char *names_of(const char *host, const char *address)
{
    struct in6_addr ip;
    const bool numeric =
        inet_pton(AF_INET, host, &ip) == 1 || inet_pton(AF_INET6, host, &ip) == 1;
    const char *own = *address ? address : host;

    if (!numeric)
        for (const char *p = host; *p; p++)
            if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                        "-._",
                        *p))
                return NULL;
    if (inet_pton(AF_INET, own, &ip) != 1 && inet_pton(AF_INET6, own, &ip) != 1)
        return mem_printf("DNS:%s", host); /* The address may have a zone, say. */
    return numeric ? mem_printf("IP:%s,IP:%s", host, own)
                   : mem_printf("DNS:%s,IP:%s", host, own);
}

static int write_bio(BIO *bio, const char *path, struct muster_error *err)
{
    const int fd =
        open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    char bytes[4096];
    const int n = DL(BIO_read)(bio, bytes, sizeof bytes);
    const bool good = fd >= 0 && n > 0 && write(fd, bytes, (size_t)n) == n;

    explicit_bzero(bytes, sizeof bytes);
    if (fd >= 0)
        (void)close(fd);
    return good ? 0 : err_set(err, MUSTER_EIO, "cannot write %s", path);
}

static int write_pem(const char *path, X509 *x, EVP_PKEY *key, struct muster_error *err)
{
    BIO *bio = DL(BIO_new)(DL(BIO_s_mem)());
    int rc = openssl_failed("write them", err);

    if (bio &&
        (x ? DL(PEM_write_bio_X509)(bio, x)
           : DL(PEM_write_bio_PrivateKey)(bio, key, NULL, NULL, 0, NULL, NULL)) == 1)
        rc = write_bio(bio, path, err);
    (void)DL(BIO_free)(bio);
    return rc;
}

static int write_all(const struct serve_certs *c, EVP_PKEY *ca, EVP_PKEY *own,
                     const char *names, struct muster_error *err)
{
    X509 *root = ca ? make_cert(ca, ca, true, NULL) : NULL;
    X509 *cert = ca && own ? make_cert(own, ca, false, names) : NULL;
    int rc = root && cert ? 0 : openssl_failed("make them", err);

    if (rc == 0)
        rc = write_pem(c->ca, root, NULL, err);
    if (rc == 0)
        rc = write_pem(c->key, NULL, own, err);
    if (rc == 0)
        rc = write_pem(c->cert, cert, NULL, err);
    DL(X509_free)(root);
    DL(X509_free)(cert);
    return rc;
}

int serve_certs_make(const struct auth *auth, const char *dir, const char *name,
                     const char *host, const char *address, struct serve_certs *out,
                     struct muster_error *err)
{
    struct serve_certs c = { mem_printf("%s/ca.pem", dir),
                             mem_printf("%s/%s.pem", dir, name),
                             mem_printf("%s/%s.key", dir, name) };
    char *names = host ? names_of(host, address) : NULL;
    int rc = c.ca && c.cert && c.key ? crypto_dl_load(err) : err_nomem(err);

    if (rc == 0 && host && !names)
        rc = err_set(err, MUSTER_EINVAL,
                     "a certificate cannot be made for the host name %s in "
                     "--rdzv-endpoint",
                     host);
    if (rc == 0) {
        EVP_PKEY *ca = ca_key(auth), *own = own_key();

        rc = write_all(&c, ca, own, names, err);
        DL(EVP_PKEY_free)(ca);
        DL(EVP_PKEY_free)(own);
        DL(ERR_clear_error)();
    }
    mem_free(names);
    if (rc < 0) {
        serve_certs_fini(&c);
        return rc;
    }
    serve_certs_fini(out);
    *out = c;
    return 0;
}

void serve_certs_fini(struct serve_certs *c)
{
    mem_free(c->ca);
    mem_free(c->cert);
    mem_free(c->key);
    *c = (struct serve_certs){ 0 };
}
