/* connect_attempt.c - connects to one address, sends the greeting, and, with a secret,
 * proves that both sides hold it; see connect_int.h.
 *
 * Who sends what. Each arrow is one write:
 *
 *   without a secret          we --> VALIDATE, PING(nonce)
 *                             it <-- the nonce: it is a store
 *   with ask_runs             we --> behind PING, or behind ANSWER: CHECK(the runs'
 * key) it <-- 0 if it hosts runs; torch's has no such key PyTorch 2.2 to 2.4        we
 * --> VALIDATE, GETNUMKEYS it <-- a number below 2^32 with a secret             we -->
 * VALIDATE, PING, CHECK(caps), OPEN it <-- the nonce, 0 (it is ours), CHALLENGE with
 * its proof we --> ANSWER with ours; nothing is left to wait for with --encrypt both:
 * TLS 1.3 with a key made from the handshake with --token-optional     OPEN waits for
 * the answer to CHECK, since the store may be torch's, which is used without a proof
 * then
 *
 * Life cycle: connecting, greeted (an answer is due), proving, over. munge is asked on
 * a thread while the CHALLENGE waits; bytes that come meanwhile are out of turn. An
 * attempt is over when its callback has come, or attempt_stop() was called; whatever
 * libuv still reports finds a->cb NULL. Its memory goes with its socket, unless that
 * became the caller's: a store_conn is the first member of the attempt it came from.
 *
 * What a loss does. Any end of the stream, wrong answer or failed proof ends this
 * attempt with a code, and connect.c weighs it against those of other addresses: it
 * retries a refusal or silence, never a wrong secret (EACCES) and a few times only
 * another service (ENOTSTORE). Out of memory is final for the attempt, and for the
 * connector, too.
 *
 * Rules, with their reasons:
 *   - The greeting is one write: torch's libuv server closes a connection whose
 *     VALIDATE comes in pieces.
 *   - The nonce is not secret. No other service echoes it by chance, and that tells a
 *     store from whatever else has the port.
 *   - The server proves itself first: somebody who took over the port learns nothing
 *     that would help with another store.
 *   - A connection to ourselves is a refusal: without a listener, TCP may connect a
 *     socket to its own port.
 *   - An encrypted connection looks like a plain one to callers: a tls_pipe stands
 *     between, and VALIDATE has been sent inside already. The attempt goes on with one
 *     end of a socket pair in place of its socket. Only the relay takes the encryption
 *     itself (connect_opts.tls). */
#include <fcntl.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "auth/munge_dl.h"
#include "auth/secret.h"
#include "auth/tls_pipe.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "loop/blocking_call.h"
#include "store/connect_int.h"
#include "store/core/reserved.h"
#include "store/core/wire.h"

#define MUNGE_MS  5000u /* for its daemon to answer */
#define READ_ROOM 512u  /* for one read; only messages with munge are longer */

/* The handshake of an attempt with a secret. */
struct attempt_proof {
    struct auth *auth; /* a reference */
    struct auth_side side;
    struct connect_opts opts;      /* where the encryption goes */
    struct blocking_call *munging; /* owned; while a credential is decoded */
    uint8_t nonce[AUTH_NONCE];
    uint8_t *challenge; /* owned; the message that the credential came in */
    size_t challenge_size;
    bool opened; /* OPEN is sent */
};

/* What the next bytes answer. */
enum attempt_stage { AT_GREETING, AT_PROOF, AT_RUNS };

struct attempt {
    struct store_conn conn; /* first: it becomes the caller's */
    uv_connect_t connect;
    attempt_cb cb; /* NULL once it is over */
    void *ctx;     /* borrowed */
    bool connected;
    bool ask_runs;
    enum greeting greeting;
    enum attempt_stage stage;
    uint32_t nonce;
    int plain; /* encrypted: our end of the socket pair, until it is opened; or -1 */
    struct attempt_proof *proof; /* owned, or NULL */
    struct buf in, out;
};

static void proof_free(struct attempt *a)
{
    if (!a->proof)
        return;
    blocking_call_cancel(a->proof->munging);
    auth_unref(a->proof->auth);
    mem_free(a->proof->challenge);
    mem_free(a->proof);
    a->proof = NULL;
}

static void attempt_on_closed(uv_handle_t *handle)
{
    struct attempt *a = CONTAINER_OF(handle, struct attempt, conn.tcp);

    if (a->plain >= 0)
        (void)close(a->plain);
    buf_fini(&a->in);
    buf_fini(&a->out);
    proof_free(a);
    mem_free(a);
}

void store_conn_close(struct store_conn *conn)
{
    if (!uv_is_closing((uv_handle_t *)&conn->tcp))
        uv_close((uv_handle_t *)&conn->tcp, attempt_on_closed);
}

void attempt_stop(struct attempt *a)
{
    a->cb = NULL;
    store_conn_close(&a->conn);
}

static int attempt_code_of(int uv)
{
    switch (uv) {
    case UV_ECONNREFUSED:
        return MUSTER_EREFUSED;
    case UV_ENETUNREACH:
    case UV_EHOSTUNREACH:
    case UV_ENETDOWN:
    case UV_EADDRNOTAVAIL:
    case UV_EAFNOSUPPORT:
    case UV_EINVAL: /* for a link-local address without its interface */
        return MUSTER_EUNREACH;
    case UV_ETIMEDOUT:
        return MUSTER_ETIMEDOUT;
    case UV_ENOMEM:
        return MUSTER_ENOMEM;
    default:
        return MUSTER_ECONN;
    }
}

static void attempt_fail(struct attempt *a, int code, const char *why)
{
    const attempt_cb cb = a->cb;

    attempt_stop(a);
    cb(a->ctx, a, NULL, code, why);
}

static void attempt_fail_uv(struct attempt *a, const char *doing, int uv)
{
    char why[200];

    (void)snprintf(why, sizeof why, "%s: %s%s", a->conn.peer, doing, uv_strerror(uv));
    attempt_fail(a, attempt_code_of(uv), why);
}

/* With these options we notice within a minute that the peer has vanished. */
static void set_socket_options(struct attempt *a)
{
    const unsigned unacked_ms = 60000;
    const int every_s = 10, probes = 3;
    uv_os_fd_t fd;

    (void)uv_tcp_nodelay(&a->conn.tcp, 1);
    (void)uv_tcp_keepalive(&a->conn.tcp, 1, 30);
    if (uv_fileno((uv_handle_t *)&a->conn.tcp, &fd) < 0)
        return;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof every_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacked_ms, sizeof unacked_ms);
}

static void attempt_succeed(struct attempt *a)
{
    const attempt_cb cb = a->cb;

    (void)uv_read_stop((uv_stream_t *)&a->conn.tcp);
    a->cb = NULL;
    a->conn.tcp.data = NULL;
    buf_fini(&a->in);
    buf_fini(&a->out);
    proof_free(a);
    cb(a->ctx, a, &a->conn, 0, NULL);
}

/* Sends what has gathered, in one write. False: it failed, and so did the attempt. */
static bool attempt_send_out(struct attempt *a, const char *doing)
{
    struct buf *out = &a->out;
    uv_buf_t b = uv_buf_init((char *)(uintptr_t)buf_data(out), (unsigned)buf_len(out));
    /* It fits into any socket's buffer, so it is sent whole. */
    const int rc = b.len ? uv_try_write((uv_stream_t *)&a->conn.tcp, &b, 1) : 0;

    if (rc != (int)b.len) {
        attempt_fail_uv(a, doing, rc < 0 ? rc : UV_EAGAIN);
        return false;
    }
    buf_clear(out);
    return true;
}

static int put_check(struct buf *out, const char *key)
{
    struct c10d_request check = { .op = C10D_CHECK };
    struct buf list;
    int rc;

    buf_init(&list, SIZE_MAX);
    rc = c10d_list_add(&list, span_str(key));
    check.list = (struct c10d_list){ buf_span(&list), 1 };
    if (rc == 0)
        rc = c10d_encode_request(out, &check, NULL);
    buf_fini(&list);
    return rc;
}

/* ---- The proof ---- */

static void attempt_fail_access(struct attempt *a, const char *why)
{
    char text[600];

    (void)snprintf(text, sizeof text, "%s: %.500s", a->conn.peer, why);
    attempt_fail(a, MUSTER_EACCES, text);
}

static int put_proof(struct attempt *a, const uint8_t *bytes, size_t n)
{
    const struct c10d_request push = { .op = C10D_QUEUE_PUSH,
                                       .key = span_str(AUTH_KEY),
                                       .value = span_of(bytes, n) };

    return c10d_encode_request(&a->out, &push, NULL);
}

static int attempt_put_open(struct attempt *a)
{
    struct attempt_proof *p = a->proof;
    uint8_t out[AUTH_MESSAGE];

    p->opened = true;
    secret_random(p->nonce, sizeof p->nonce);
    return put_proof(a, out,
                     auth_client_open(&p->side, &p->auth->settings, p->nonce,
                                      span_str(p->auth->name), out));
}

static void attempt_on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf);
static void attempt_on_read(uv_stream_t *stream, ssize_t nread, const uv_buf_t *buf);

/* Both sides have proven themselves: sends what is left, and, if the caller wants to
 * know it, asks whether the store hosts runs. */
static void attempt_proven(struct attempt *a)
{
    a->stage = AT_RUNS;
    if (a->ask_runs && put_check(&a->out, RESERVED_RUN) < 0)
        attempt_fail_uv(a, "", UV_ENOMEM);
    else if (attempt_send_out(a, "proving the job's secret: ") && !a->ask_runs)
        attempt_succeed(a);
}

/* The attempt's own socket is closed, and its copy is in the tls_pipe. */
static void attempt_on_encrypted(uv_handle_t *handle)
{
    static const uint8_t validate[] = { C10D_VALIDATE, 0xce, 0xf7, 0x85, 0x3c };
    struct attempt *a = CONTAINER_OF(handle, struct attempt, conn.tcp);
    uv_loop_t *loop = handle->loop;
    int rc;

    if (!a->cb || uv_tcp_init(loop, &a->conn.tcp) < 0) {
        const attempt_cb cb = a->cb;

        if (cb)
            cb(a->ctx, a, NULL, MUSTER_ENOMEM, "out of memory");
        attempt_on_closed(handle);
        return;
    }
    a->conn.tcp.data = a;
    rc = uv_tcp_open(&a->conn.tcp, a->plain);
    if (rc == 0) {
        a->plain = -1;
        rc = uv_read_start((uv_stream_t *)&a->conn.tcp, attempt_on_alloc,
                           attempt_on_read);
    }
    if (rc == 0 && buf_append(&a->out, validate, sizeof validate) < 0)
        rc = UV_ENOMEM;
    if (rc < 0)
        attempt_fail_uv(a, "encrypting: ", rc);
    else
        attempt_proven(a);
}

/* A tls_pipe carries the encrypted connection, so that nobody else needs to know of it:
 * the attempt goes on with one end of a socket pair, on which the protocol starts
 * again. */
static void encrypt(struct attempt *a)
{
    struct attempt_proof *p = a->proof;
    const attempt_cb cb = a->cb;
    struct muster_error err = { 0 };
    struct tls *tls = NULL;
    uint8_t key[AUTH_SECRET];
    int ends[2] = { -1, -1 }, fd = -1;
    uv_os_fd_t own;

    auth_session_key(&p->side, &p->auth->settings, key);
    if (uv_fileno((uv_handle_t *)&a->conn.tcp, &own) == 0)
        fd = fcntl(own, F_DUPFD_CLOEXEC, 3);
    if (fd < 0 || tls_new(false, fd, key, &tls, &err) < 0)
        goto fail;
    if (p->opts.tls) {
        *p->opts.tls = tls;
        *p->opts.tls_fd = fd;
        attempt_stop(a);
        cb(a->ctx, a, NULL, 0, NULL);
        return;
    }
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) < 0 ||
        tls_pipe_open(a->conn.tcp.loop, ends[1], fd, tls, &err) < 0)
        goto fail;
    a->plain = ends[0];
    uv_close((uv_handle_t *)&a->conn.tcp, attempt_on_encrypted);
    return;
fail:
    tls_end(tls);
    for (int i = 0; i < 2; i++)
        if (ends[i] >= 0)
            (void)close(ends[i]);
    if (fd >= 0)
        (void)close(fd);
    attempt_fail_access(a,
                        err.text[0] ? err.text : "cannot encrypt: out of descriptors");
}

/* Checks the server's proof and sends ours, or why we refuse. After our proof there is
 * nothing to wait for: a server that refuses it closes the connection. */
static void attempt_answer(struct attempt *a, const struct auth_message *m,
                           struct span bytes)
{
    struct attempt_proof *p = a->proof;
    uint8_t out[AUTH_MESSAGE];
    struct muster_error err;
    size_t n = 0;
    int rc;

    secret_addresses(p->auth);
    rc = auth_client_answer(&p->side, &p->auth->settings, m, bytes,
                            p->auth->addresses[0], p->auth->address_count, out, &n,
                            &err);
    if (rc == 0 && buf_len(&a->in))
        rc = err_set(&err, MUSTER_EACCES, "it sent a handshake message out of turn");
    if (n && put_proof(a, out, n) < 0) {
        attempt_fail_uv(a, "", UV_ENOMEM);
    } else if (rc < 0) { /* Send the reason, so that the server can log it, too. */
        uv_buf_t b = uv_buf_init((char *)(uintptr_t)buf_data(&a->out),
                                 (unsigned)buf_len(&a->out));

        if (b.len)
            (void)uv_try_write((uv_stream_t *)&a->conn.tcp, &b, 1);
        attempt_fail_access(a, err.text);
    } else if (!(p->auth->settings.flags & AUTH_ENCRYPT)) {
        attempt_proven(a);
    } else if (attempt_send_out(a, "proving the job's secret: ")) {
        encrypt(a);
    }
}

/* A credential was made for this connection if it contains both nonces. */
static void attempt_on_credential(void *ctx, void *data)
{
    struct attempt *a = ctx;
    struct attempt_proof *p = a->proof;
    const struct munge_job *job = data;
    const struct span bytes = span_of(p->challenge, p->challenge_size);
    struct auth_message m;

    p->munging = NULL;
    if (!a->cb)
        return;
    if (!job || job->err.code) {
        attempt_fail_access(a, job ? job->err.text : "munge: no answer within 5 s");
        return;
    }
    if (auth_decode(bytes, &m, NULL) < 0 ||
        !auth_equal(job->payload + AUTH_SECRET, p->nonce, AUTH_NONCE) ||
        !auth_equal(job->payload + AUTH_SECRET + AUTH_NONCE, m.nonce, AUTH_NONCE)) {
        attempt_fail_access(a, "its munge credential was made for another connection");
        return;
    }
    auth_set_key(p->auth, job->payload);
    attempt_answer(a, &m, bytes);
}

static void decode_credential(struct attempt *a, const struct auth_message *m,
                              struct span bytes)
{
    struct attempt_proof *p = a->proof;
    struct munge_job *job = mem_calloc(1, sizeof *job);
    struct muster_error err;

    p->challenge = mem_alloc(bytes.n);
    p->challenge_size = bytes.n;
    if (p->challenge)
        memcpy(p->challenge, bytes.p, bytes.n);
    if (job)
        (void)snprintf(job->credential, sizeof job->credential, "%.*s",
                       (int)m->credential.n, (const char *)m->credential.p);
    if (!job || !p->challenge ||
        blocking_call_run(a->conn.tcp.loop, munge_take, job, MUNGE_MS,
                          attempt_on_credential, a, &p->munging, &err) < 0) {
        mem_free(job);
        attempt_fail_uv(a, "", UV_ENOMEM);
    }
}

static void attempt_on_message(struct attempt *a, struct span bytes)
{
    struct attempt_proof *p = a->proof;
    const unsigned flags = p->auth->settings.flags;
    struct auth_message m;
    struct muster_error err;

    if (auth_decode(bytes, &m, &err) < 0) {
        attempt_fail_access(a, err.text);
    } else if (m.kind == AUTH_CHALLENGE && (flags & m.flags & AUTH_MUNGE) &&
               p->side.expects == AUTH_CHALLENGE && !p->munging) {
        decode_credential(a, &m, bytes);
    } else if (p->munging) {
        attempt_fail_access(a, "it sent a handshake message out of turn");
    } else {
        attempt_answer(a, &m, bytes);
    }
}

/* The CHECK is answered: the store is ours, or it is torch's, which cannot prove
 * anything. */
static void attempt_on_greeted(struct attempt *a, bool is_ours)
{
    struct attempt_proof *p = a->proof;

    a->stage = AT_PROOF;
    if (is_ours && !p->opened) {
        if (attempt_put_open(a) < 0)
            attempt_fail_uv(a, "", UV_ENOMEM);
        else
            (void)attempt_send_out(a, "proving the job's secret: ");
    } else if (!is_ours && p->auth->optional) {
        attempt_succeed(a);
    } else if (!is_ours) {
        attempt_fail_access(
            a, "that is a store of torch's, which cannot prove that it belongs to "
               "the job (--token-optional trusts it without a proof)");
    }
}

static void attempt_on_proof(struct attempt *a)
{
    uint8_t bytes[AUTH_MESSAGE];
    uint64_t n;

    if (buf_len(&a->in) < 8)
        return;
    n = get_u64(buf_data(&a->in));
    if (n > AUTH_MESSAGE) {
        attempt_fail_access(a, "its handshake message is too long");
        return;
    }
    if (buf_len(&a->in) < 8 + n)
        return;
    memcpy(bytes, buf_data(&a->in) + 8, (size_t)n);
    buf_consume(&a->in, 8 + (size_t)n);
    attempt_on_message(a, span_of(bytes, (size_t)n));
}

/* ---- The greeting ---- */

static void attempt_not_a_store(struct attempt *a)
{
    const uint32_t got = get_u32(buf_data(&a->in));
    char why[300];

    if (a->greeting == GREET_PING && got == a->nonce)
        (void)snprintf(why, sizeof why, "%s: it sent more than the answer to PING",
                       a->conn.peer);
    else if (memcmp(buf_data(&a->in), "HTTP", 4) == 0)
        (void)snprintf(why, sizeof why, "%s: a web server answers there", a->conn.peer);
    else if (a->greeting == GREET_NUM_KEYS)
        (void)snprintf(why, sizeof why, "%s: what answers there is not a store",
                       a->conn.peer);
    else
        (void)snprintf(why, sizeof why,
                       "%s: Ping failed, invalid value returned from server. "
                       "Expected: %" PRIu32 ", Got: %" PRIu32,
                       a->conn.peer, a->nonce, got);
    attempt_fail(a, MUSTER_ENOTSTORE, why);
}

/* The number of keys is below 2^32; and whoever repeats the nonce is a store. */
static void attempt_on_greeting(struct attempt *a)
{
    const bool ping = a->greeting == GREET_PING;
    const uint8_t *in = buf_data(&a->in);
    const size_t got = buf_len(&a->in);
    const size_t first = ping ? 4 : 8, want = first + (a->proof || a->ask_runs);

    if (got < 4)
        return;
    if (ping ? get_u32(in) != a->nonce
             : got >= 8 && get_u64(in) >= (UINT64_C(1) << 32)) {
        attempt_not_a_store(a);
    } else if (got > want && !a->proof) {
        attempt_not_a_store(a);
    } else if (got >= want && a->proof) {
        const bool is_ours = in[first] == 0;

        buf_consume(&a->in, want);
        attempt_on_greeted(a, is_ours);
        if (a->cb)
            attempt_on_proof(a);
    } else if (got == want) {
        a->conn.runs = want > first && in[first] == 0;
        attempt_succeed(a);
    }
}

static void attempt_on_bytes(struct attempt *a)
{
    switch (a->stage) {
    case AT_GREETING:
        attempt_on_greeting(a);
        return;
    case AT_PROOF:
        attempt_on_proof(a);
        return;
    case AT_RUNS:
        a->conn.runs = buf_data(&a->in)[0] == 0;
        if (buf_len(&a->in) == 1)
            attempt_succeed(a);
        else
            attempt_on_proof(a); /* It says why it refuses our proof. */
        return;
    }
}

static void attempt_on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct attempt *a = handle->data;
    uint8_t *room = buf_room(&a->in, READ_ROOM);

    (void)suggested;
    *buf = uv_buf_init((char *)room, room ? READ_ROOM : 0);
}

static void attempt_on_read(uv_stream_t *stream, ssize_t nread, const uv_buf_t *buf)
{
    struct attempt *a = stream->data;
    char why[200];

    (void)buf;
    if (!a->cb || nread == 0)
        return;
    if (nread > 0) {
        buf_commit(&a->in, (size_t)nread);
        attempt_on_bytes(a);
        return;
    }
    (void)snprintf(why, sizeof why,
                   "%s: accepted the connection and closed it without an answer: %s",
                   a->conn.peer,
                   nread == UV_EOF ? "end of file" : uv_strerror((int)nread));
    attempt_fail(a, MUSTER_EHANGUP, why);
}

/* With --token-optional, OPEN waits for the answer to CHECK, since the store may be
 * torch's. Without it such a store is refused anyway, so OPEN need not wait. */
static int put_greeting(struct attempt *a)
{
    const bool ping = a->greeting == GREET_PING;
    uint8_t hello[10];
    int rc;

    hello[0] = C10D_VALIDATE;
    put_u32(hello + 1, C10D_MAGIC);
    hello[5] = ping ? C10D_PING : C10D_GETNUMKEYS;
    put_u32(hello + 6, a->nonce);
    rc = buf_append(&a->out, hello, ping ? 10 : 6);
    if (rc == 0 && a->proof)
        rc = put_check(&a->out, RESERVED_CAPS);
    else if (rc == 0 && a->ask_runs)
        rc = put_check(&a->out, RESERVED_RUN);
    if (rc == 0 && a->proof && !a->proof->auth->optional)
        rc = attempt_put_open(a);
    return rc;
}

static void attempt_greet(struct attempt *a)
{
    int rc =
        uv_read_start((uv_stream_t *)&a->conn.tcp, attempt_on_alloc, attempt_on_read);

    if (rc == 0 && put_greeting(a) < 0)
        rc = UV_ENOMEM;
    if (rc < 0)
        attempt_fail_uv(a, "sending the greeting: ", rc);
    else
        (void)attempt_send_out(a, "sending the greeting: ");
}

/* Notes the addresses of both ends. If nothing listens on the port, and our own end
 * happens to get that port, TCP connects us to ourselves: false. */
static bool note_ends(struct attempt *a)
{
    struct sockaddr_storage local = { 0 }, peer = { 0 };
    int local_len = sizeof local, peer_len = sizeof peer;
    uint8_t ip[16];

    if (uv_tcp_getsockname(&a->conn.tcp, (struct sockaddr *)&local, &local_len) < 0 ||
        uv_tcp_getpeername(&a->conn.tcp, (struct sockaddr *)&peer, &peer_len) < 0)
        return true;
    if (ip_of_sockaddr((struct sockaddr *)&local, ip))
        ip_text(ip, a->conn.local);
    /* An address that needs its interface cannot be dialled without it. */
    if (ip_of_sockaddr((struct sockaddr *)&peer, ip) &&
        (peer.ss_family != AF_INET6 ||
         ((const struct sockaddr_in6 *)&peer)->sin6_scope_id == 0))
        ip_text(ip, a->conn.ip);
    return local_len != peer_len || memcmp(&local, &peer, (size_t)local_len) != 0;
}

static void attempt_on_connect(uv_connect_t *connect, int status)
{
    struct attempt *a = CONTAINER_OF(connect, struct attempt, connect);

    if (!a->cb)
        return;
    if (status < 0) {
        attempt_fail_uv(a, "", status);
        return;
    }
    if (!note_ends(a)) {
        attempt_fail_uv(a, "", UV_ECONNREFUSED);
        return;
    }
    a->connected = true;
    set_socket_options(a);
    attempt_greet(a);
}

struct attempt *attempt_start(uv_loop_t *loop, const struct sockaddr *addr,
                              enum greeting greeting, const struct connect_opts *opts,
                              uint32_t nonce, attempt_cb cb, void *ctx, int *code,
                              char *why, size_t why_size)
{
    struct attempt *a = mem_calloc(1, sizeof *a);
    int rc;

    if (a && opts->auth) {
        a->proof = mem_calloc(1, sizeof *a->proof);
        if (!a->proof) {
            mem_free(a);
            a = NULL;
        } else {
            a->proof->auth = auth_ref(opts->auth);
            a->proof->opts = *opts;
        }
    }
    if (!a) {
        *code = MUSTER_ENOMEM;
        (void)snprintf(why, why_size, "out of memory");
        return NULL;
    }
    a->cb = cb;
    a->ctx = ctx;
    a->greeting = greeting;
    a->ask_runs = opts->ask_runs;
    a->nonce = nonce;
    a->plain = -1;
    buf_init(&a->in, 4 * AUTH_MESSAGE);
    buf_init(&a->out, 4 * AUTH_MESSAGE);
    address_text(addr, a->conn.peer);
    rc = uv_tcp_init(loop, &a->conn.tcp);
    if (rc < 0) {
        proof_free(a);
        mem_free(a);
        *code = MUSTER_ENOMEM;
        (void)snprintf(why, why_size, "%s", uv_strerror(rc));
        return NULL;
    }
    a->conn.tcp.data = a;
    rc = uv_tcp_connect(&a->connect, &a->conn.tcp, addr, attempt_on_connect);
    if (rc < 0) {
        *code = attempt_code_of(rc);
        (void)snprintf(why, why_size, "%s: %s", a->conn.peer, uv_strerror(rc));
        attempt_stop(a);
        return NULL;
    }
    return a;
}

void attempt_status(const struct attempt *a, char *why, size_t why_size)
{
    (void)snprintf(why, why_size, "%s: %s", a->conn.peer,
                   a->connected ? "accepted the connection and does not answer"
                                : "no answer to the connection request");
}
