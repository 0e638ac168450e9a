/* tls.c - see tls.h. We read and write the socket ourselves: OpenSSL would raise
 * SIGPIPE in programs that use the library. */
#include "auth/tls.h"

#include <errno.h>
#include <pthread.h>
#include <sys/socket.h>

#include "auth/openssl_dl.h"
#include "base/err.h"
#include "base/mem.h"

#define CHUNK 16384u /* of one record, at most */

struct tls {
    int fd; /* borrowed */
    SSL *ssl;
    BIO *in, *out; /* the ssl's */
    uint8_t psk[AUTH_SECRET];
    uint8_t pending[CHUNK + 2048]; /* encrypted, on its way to the socket */
    size_t pending_from, pending_to;
    bool broken;
    bool asked; /* the handshake has begun, and a client's first message is sent */
    bool more;  /* the last read of the socket may have left something there */
};

static const unsigned char identity[] = "muster";

static SSL_SESSION *session_of(SSL *ssl)
{
    static const unsigned char aes_128_gcm_sha256[] = { 0x13, 0x01 };
    const struct tls *t = DL(SSL_get_ex_data)(ssl, 0);
    const SSL_CIPHER *cipher = DL(SSL_CIPHER_find)(ssl, aes_128_gcm_sha256);
    SSL_SESSION *s = DL(SSL_SESSION_new)();

    if (s && cipher && DL(SSL_SESSION_set1_master_key)(s, t->psk, sizeof t->psk) &&
        DL(SSL_SESSION_set_cipher)(s, cipher) &&
        DL(SSL_SESSION_set_protocol_version)(s, TLS1_3_VERSION))
        return s;
    DL(SSL_SESSION_free)(s);
    return NULL;
}

static int use_psk(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *size,
                   SSL_SESSION **out)
{
    (void)md;
    *id = identity;
    *size = sizeof identity - 1;
    *out = session_of(ssl);
    return *out != NULL;
}

static int find_psk(SSL *ssl, const unsigned char *id, size_t size, SSL_SESSION **out)
{
    *out = NULL;
    if (size == sizeof identity - 1 && memcmp(id, identity, size) == 0)
        *out = session_of(ssl);
    return 1;
}

/* A server could ignore the key that the client offers and show a certificate instead.
 * None of our nodes has one, but by default OpenSSL would accept any. */
static int refuse_certificate(int ok, X509_STORE_CTX *certificate)
{
    (void)ok;
    (void)certificate;
    return 0;
}

static SSL_CTX *context;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* One context serves the whole process in both roles. It is never freed. */
static SSL_CTX *get_context(void)
{
    pthread_mutex_lock(&lock);
    if (!context) {
        SSL_CTX *c = DL(SSL_CTX_new)(DL(TLS_method)());

        if (c) {
            (void)DL(SSL_CTX_ctrl)(c, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_3_VERSION,
                                   NULL);
            (void)DL(SSL_CTX_ctrl)(c, SSL_CTRL_MODE,
                                   SSL_MODE_ENABLE_PARTIAL_WRITE |
                                       SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                       SSL_MODE_RELEASE_BUFFERS,
                                   NULL);
            /* The key is bound to this suite's hash, so no other may be chosen. */
            (void)DL(SSL_CTX_set_ciphersuites)(c, "TLS_AES_128_GCM_SHA256");
            (void)DL(SSL_CTX_set_num_tickets)(c, 0);
            DL(SSL_CTX_set_psk_use_session_callback)(c, use_psk);
            DL(SSL_CTX_set_psk_find_session_callback)(c, find_psk);
        }
        context = c;
    }
    pthread_mutex_unlock(&lock);
    return context;
}

int tls_new(bool server, int fd, const uint8_t psk[AUTH_SECRET], struct tls **out,
            struct muster_error *err)
{
    struct tls *t;
    SSL_CTX *c;
    int rc = ssl_dl_load(err);

    if (rc < 0)
        return rc;
    c = get_context();
    t = mem_calloc(1, sizeof *t);
    if (t && c)
        t->ssl = DL(SSL_new)(c);
    if (t && t->ssl) {
        t->in = DL(BIO_new)(DL(BIO_s_mem)());
        t->out = DL(BIO_new)(DL(BIO_s_mem)());
        if (t->in && t->out)
            DL(SSL_set_bio)(t->ssl, t->in, t->out);
    }
    if (!t || !t->ssl || !t->in || !t->out) {
        tls_end(t);
        return err_nomem(err);
    }
    t->fd = fd;
    memcpy(t->psk, psk, sizeof t->psk);
    (void)DL(SSL_set_ex_data)(t->ssl, 0, t);
    if (server) {
        DL(SSL_set_accept_state)(t->ssl);
    } else {
        DL(SSL_set_verify)(t->ssl, SSL_VERIFY_PEER, refuse_certificate);
        DL(SSL_set_connect_state)(t->ssl);
    }
    *out = t;
    return 0;
}

void tls_end(struct tls *t)
{
    if (!t)
        return;
    if (t->ssl)
        DL(SSL_free)(t->ssl); /* and its two BIOs */
    explicit_bzero(t->psk, sizeof t->psk);
    mem_free(t);
}

bool tls_pending(struct tls *t)
{
    return DL(BIO_ctrl)(t->in, BIO_CTRL_PENDING, 0, NULL) > 0;
}

bool tls_buffered(struct tls *t)
{
    return t->more || tls_pending(t);
}

int tls_flush(struct tls *t)
{
    for (;;) {
        if (t->pending_from == t->pending_to) {
            const int n = DL(BIO_read)(t->out, t->pending, (int)sizeof t->pending);

            if (n <= 0)
                return 1;
            t->pending_from = 0;
            t->pending_to = (size_t)n;
        }
        const ssize_t n =
            send(t->fd, t->pending + t->pending_from, t->pending_to - t->pending_from,
                 MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
        t->pending_from += (size_t)n;
    }
}

int tls_feed(struct tls *t, const void *bytes, size_t size)
{
    return size == 0 || DL(BIO_write)(t->in, bytes, (int)size) == (int)size
               ? 0
               : MUSTER_ENOMEM;
}

/* Passes what the peer sent to OpenSSL. Returns what recv returned. */
static ssize_t tls_receive(struct tls *t)
{
    uint8_t bytes[CHUNK + 512];
    ssize_t n;

    do
        n = recv(t->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    t->more = n == (ssize_t)sizeof bytes || n == 0;
    if (n > 0 && DL(BIO_write)(t->in, bytes, (int)n) != (int)n) {
        errno = ENOMEM;
        return -1;
    }
    return n;
}

ssize_t tls_read(struct tls *t, void *to, size_t size)
{
    /* Without new bytes there is nothing to decrypt: this saves calling SSL_read. */
    if (t->asked && !t->broken && !tls_pending(t) && !DL(SSL_has_pending)(t->ssl)) {
        const ssize_t got = tls_receive(t);
        const int why = errno;

        if (got <= 0) {
            if (tls_flush(t) < 0)
                return -1;
            errno = why;
            return got;
        }
    }
    t->asked = true;
    for (;;) {
        DL(ERR_clear_error)();
        const int n =
            t->broken ? -1 : DL(SSL_read)(t->ssl, to, (int)MIN_OF(size, 1u << 30));
        const int why = n > 0 || t->broken ? 0 : DL(SSL_get_error)(t->ssl, n);

        if (tls_flush(t) < 0 && n <= 0)
            return -1;
        if (n > 0)
            return n;
        if (why == SSL_ERROR_ZERO_RETURN)
            return 0;
        if (why != SSL_ERROR_WANT_READ) {
            t->broken = true;
            errno = EPROTO;
            return -1;
        }
        const ssize_t got = tls_receive(t);
        if (got <= 0)
            return got;
    }
}

ssize_t tls_write(struct tls *t, const void *from, size_t size)
{
    size_t taken = 0;

    if (t->broken) {
        errno = EPROTO;
        return -1;
    }
    while (taken < size) {
        const int flushed = tls_flush(t);
        int n;

        if (flushed <= 0)
            return flushed < 0 ? -1 : (ssize_t)taken;
        DL(ERR_clear_error)();
        n = DL(SSL_write)(t->ssl, (const uint8_t *)from + taken,
                          (int)MIN_OF(size - taken, CHUNK));
        if (n <= 0) { /* The handshake is not complete; the next read continues it. */
            if (DL(SSL_get_error)(t->ssl, n) == SSL_ERROR_WANT_READ)
                return tls_flush(t) < 0 ? -1 : (ssize_t)taken;
            t->broken = true;
            errno = EPROTO;
            return -1;
        }
        taken += (size_t)n;
    }
    return tls_flush(t) < 0 ? -1 : (ssize_t)taken;
}
