/* test_tls.c - auth/tls.c over a pair of sockets: equal keys, other keys, much data,
 * and an impostor who has a certificate in place of the key. */
#include <errno.h>
#include <openssl/ec.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <unistd.h>

#include "auth/tls.h"
#include "base/mem.h"
#include "testing.h"

static void pair(int fds[2], struct tls **a, struct tls **b, uint8_t other)
{
    const uint8_t k1[AUTH_SECRET] = "the same key on both ends......";
    uint8_t k2[AUTH_SECRET];
    struct muster_error err;

    memcpy(k2, k1, sizeof k2);
    k2[0] = (uint8_t)(k2[0] ^ other);
    assert_int_equal(
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    assert_int_equal(tls_new(true, fds[0], k1, a, &err), 0);
    assert_int_equal(tls_new(false, fds[1], k2, b, &err), 0);
}

static void drop(int fds[2], struct tls *a, struct tls *b)
{
    tls_end(a);
    tls_end(b);
    (void)close(fds[0]);
    (void)close(fds[1]);
}

/* Reads on both sides until nobody has anything to say. */
static void settle(struct tls *a, struct tls *b)
{
    char c;

    for (int i = 0; i < 4; i++) {
        assert_int_equal(tls_read(a, &c, 1), -1);
        assert_int_equal(errno, EAGAIN);
        assert_int_equal(tls_read(b, &c, 1), -1);
        assert_int_equal(errno, EAGAIN);
    }
}

static void equal_keys(void **state)
{
    struct tls *a, *b;
    char got[100];
    int fds[2];

    (void)state;
    pair(fds, &a, &b, 0);
    settle(a, b);
    assert_int_equal(tls_write(b, "to the server", 13), 13);
    assert_int_equal(tls_read(a, got, sizeof got), 13);
    assert_memory_equal(got, "to the server", 13);
    assert_int_equal(tls_write(a, "and back", 8), 8);
    assert_int_equal(tls_read(b, got, sizeof got), 8);
    assert_memory_equal(got, "and back", 8);
    (void)shutdown(fds[1], SHUT_RDWR);
    assert_int_equal(tls_read(a, got, sizeof got), 0);
    drop(fds, a, b);
}

static void other_keys(void **state)
{
    struct tls *a, *b;
    bool broken = false;
    int fds[2];
    char c;

    (void)state;
    pair(fds, &a, &b, 1);
    for (int i = 0; i < 4 && !broken; i++) {
        broken = (tls_read(a, &c, 1) < 0 && errno == EPROTO) ||
                 (tls_read(b, &c, 1) < 0 && errno == EPROTO);
    }
    assert_true(broken);
    drop(fds, a, b);
}

/* More than the socket takes: what waits goes out with tls_flush, in order. */
static void much(void **state)
{
    const size_t size = 3 << 20;
    uint8_t *out = mem_alloc(size), *in = mem_alloc(size);
    size_t sent = 0, got = 0;
    struct tls *a, *b;
    int fds[2];

    (void)state;
    assert_non_null(out);
    assert_non_null(in);
    for (size_t i = 0; i < size; i++)
        out[i] = (uint8_t)(i * 31 + i / 1000);
    pair(fds, &a, &b, 0);
    settle(a, b);
    while (got < size) {
        const ssize_t n = sent < size ? tls_write(b, out + sent, size - sent) : 0;
        ssize_t m;

        assert_true(n >= 0);
        sent += (size_t)n;
        assert_true(tls_flush(b) >= 0);
        while ((m = tls_read(a, in + got, size - got > 70000 ? 70000 : size - got)) > 0)
            got += (size_t)m;
    }
    assert_memory_equal(in, out, size);
    drop(fds, a, b);
    mem_free(in);
    mem_free(out);
}

/* A server of OpenSSL's own, with a certificate that it has signed itself. */
static SSL *impostor(int fd, SSL_CTX **ctx)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = X509_new();
    SSL *ssl;

    assert_non_null(key);
    assert_non_null(cert);
    (void)X509_gmtime_adj(X509_getm_notBefore(cert), 0);
    (void)X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
    assert_int_equal(X509_set_pubkey(cert, key), 1);
    assert_true(X509_sign(cert, key, EVP_sha256()) > 0);
    *ctx = SSL_CTX_new(TLS_server_method());
    assert_non_null(*ctx);
    assert_int_equal(SSL_CTX_use_certificate(*ctx, cert), 1);
    assert_int_equal(SSL_CTX_use_PrivateKey(*ctx, key), 1);
    X509_free(cert);
    EVP_PKEY_free(key);
    ssl = SSL_new(*ctx);
    assert_non_null(ssl);
    assert_int_equal(SSL_set_fd(ssl, fd), 1);
    SSL_set_accept_state(ssl);
    return ssl;
}

/* Whoever stands between the two and has let their proofs pass may answer for the
 * server from there on. TLS lets a server choose a certificate over the key that the
 * client offers: the client must not. */
static void a_certificate_is_no_key(void **state)
{
    const uint8_t key[AUTH_SECRET] = "the same key on both ends......";
    struct muster_error err;
    bool broken = false;
    struct tls *client;
    SSL_CTX *ctx;
    SSL *server;
    int fds[2];
    char c;

    (void)state;
    assert_int_equal(
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    server = impostor(fds[0], &ctx);
    assert_int_equal(tls_new(false, fds[1], key, &client, &err), 0);
    for (int i = 0; i < 8 && !broken; i++) {
        broken = tls_read(client, &c, 1) < 0 && errno == EPROTO;
        (void)SSL_accept(server);
        (void)SSL_write(server, "x", 1);
    }
    assert_true(broken);
    assert_int_equal(tls_write(client, "a key of the job", 16), -1);
    assert_int_equal(errno, EPROTO);
    tls_end(client);
    SSL_free(server);
    SSL_CTX_free(ctx);
    (void)close(fds[0]);
    (void)close(fds[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_keys),
        cmocka_unit_test(other_keys),
        cmocka_unit_test(much),
        cmocka_unit_test(a_certificate_is_no_key),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
