/* handshake.c - see handshake.h. */
#include "auth/core/handshake.h"

#include <assert.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/err.h"

bool auth_equal(const uint8_t *a, const uint8_t *b, size_t n)
{
    volatile uint8_t differs = 0; /* volatile: no compiler may leave the loop early. */

    for (size_t i = 0; i < n; i++)
        differs = (uint8_t)(differs | (a[i] ^ b[i]));
    return differs == 0;
}

void auth_key_of_token(auth_hmac_fn hmac, struct span token, uint8_t out[AUTH_SECRET])
{
    hmac(token.p, token.n, span_str("muster auth 1 key"), out);
}

void auth_run_digest(auth_hmac_fn hmac, struct span run_id, uint8_t out[AUTH_PROOF])
{
    static const char label[] = "muster auth 1 run";

    hmac((const uint8_t *)label, sizeof label - 1, run_id, out);
}

static const uint8_t no_run[AUTH_PROOF];

/* ---- Messages ---- */

struct reader {
    struct span left;
    bool bad;
};

static const uint8_t *take(struct reader *r, size_t n)
{
    const uint8_t *p = r->left.p;

    if (r->bad || r->left.n < n) {
        r->bad = true;
        return NULL;
    }
    assert(n <= r->left.n);
    r->left = span_of(p + n, r->left.n - n);
    return p;
}

static struct span take_span(struct reader *r, size_t most)
{
    const uint8_t *size = take(r, 2);
    const size_t n = size ? (size_t)(size[0] | size[1] << 8) : 0;
    const uint8_t *p;

    if (n > most)
        r->bad = true;
    p = take(r, n);
    return p ? span_of(p, n) : span_of(NULL, 0);
}

static void take_fields(struct reader *r, struct auth_message *m)
{
    const uint8_t *byte;

    switch (m->kind) {
    case AUTH_OPEN:
        byte = take(r, 1);
        m->flags = byte ? *byte : 0;
        m->nonce = take(r, AUTH_NONCE);
        m->run = take(r, AUTH_PROOF);
        m->name = take_span(r, AUTH_NAME);
        break;
    case AUTH_CHALLENGE:
        byte = take(r, 1);
        m->flags = byte ? *byte : 0;
        m->nonce = take(r, AUTH_NONCE);
        m->credential = take_span(r, AUTH_CREDENTIAL);
        m->proof = take(r, AUTH_PROOF);
        break;
    case AUTH_ANSWER:
        m->proof = take(r, AUTH_PROOF);
        byte = take(r, 1);
        m->address_count = byte ? *byte : 0;
        if (m->address_count > AUTH_ADDRESSES)
            r->bad = true;
        m->addresses = take(r, 16 * m->address_count);
        break;
    case AUTH_REFUSED:
        m->text = take_span(r, AUTH_TEXT);
        break;
    }
}

int auth_decode(struct span bytes, struct auth_message *out, struct muster_error *err)
{
    struct reader r = { .left = bytes };
    const uint8_t *head = take(&r, 2);
    struct auth_message m = { 0 };

    if (!head || bytes.n > AUTH_MESSAGE)
        return err_set(err, MUSTER_EPROTO, "its handshake message has %zu bytes",
                       bytes.n);
    if (head[0] != AUTH_VERSION)
        return err_set(
            err, MUSTER_EPROTO,
            "its handshake has version %u, expected %u: the two nodes do not "
            "run the same release of muster",
            head[0], AUTH_VERSION);
    if (head[1] < AUTH_OPEN || head[1] > AUTH_REFUSED)
        return err_set(err, MUSTER_EPROTO,
                       "its handshake message is of the unknown kind %u", head[1]);
    m.kind = (enum auth_kind)head[1];
    take_fields(&r, &m);
    if (r.bad || r.left.n)
        return err_set(err, MUSTER_EPROTO, "its handshake message of kind %u is %s",
                       head[1], r.bad ? "cut off" : "too long");
    *out = m;
    return 0;
}

static uint8_t *message_put(uint8_t *p, const void *from, size_t n)
{
    if (n)
        memcpy(p, from, n);
    return p + n;
}

static uint8_t *message_put_span(uint8_t *p, struct span s, size_t most)
{
    const size_t n = MIN_OF(s.n, most);

    *p++ = (uint8_t)n;
    *p++ = (uint8_t)(n >> 8);
    return message_put(p, s.p, n);
}

size_t auth_encode(const struct auth_message *m, uint8_t out[AUTH_MESSAGE])
{
    uint8_t *p = out;

    *p++ = AUTH_VERSION;
    *p++ = (uint8_t)m->kind;
    switch (m->kind) {
    case AUTH_OPEN:
        *p++ = (uint8_t)m->flags;
        p = message_put(p, m->nonce, AUTH_NONCE);
        p = message_put(p, m->run, AUTH_PROOF);
        p = message_put_span(p, m->name, AUTH_NAME);
        break;
    case AUTH_CHALLENGE:
        *p++ = (uint8_t)m->flags;
        p = message_put(p, m->nonce, AUTH_NONCE);
        p = message_put_span(p, m->credential, AUTH_CREDENTIAL);
        p = message_put(p, m->proof, AUTH_PROOF);
        break;
    case AUTH_ANSWER:
        p = message_put(p, m->proof, AUTH_PROOF);
        *p++ = (uint8_t)MIN_OF(m->address_count, AUTH_ADDRESSES);
        p = message_put(p, m->addresses, 16 * MIN_OF(m->address_count, AUTH_ADDRESSES));
        break;
    case AUTH_REFUSED:
        p = message_put_span(p, m->text, AUTH_TEXT);
        break;
    }
    assert((size_t)(p - out) <= AUTH_MESSAGE);
    return (size_t)(p - out);
}

/* ---- Proofs ---- */

/* A proof covers what both sides have said, and then what this proof adds to it. */
static void prove(const struct auth_side *e, const struct auth_settings *s,
                  const char *label, const void *more, size_t more_size,
                  uint8_t out[AUTH_PROOF])
{
    uint8_t data[64 + sizeof e->said + 16 * AUTH_ADDRESSES + AUTH_PROOF];
    uint8_t *p = message_put(data, label, strlen(label) + 1);

    assert(strlen(label) < 64 && e->said_size <= sizeof e->said);
    assert(more_size <= AUTH_PROOF + 16 * AUTH_ADDRESSES);
    p = message_put(p, e->said, e->said_size);
    p = message_put(p, more, more_size);
    s->hmac(s->key, AUTH_SECRET, span_of(data, (size_t)(p - data)), out);
}

static void prove_server(const struct auth_side *e, const struct auth_settings *s,
                         uint8_t out[AUTH_PROOF])
{
    prove(e, s, "muster auth 1 server", NULL, 0, out);
}

static void prove_client(const struct auth_side *e, const struct auth_settings *s,
                         const uint8_t *addresses, size_t count,
                         uint8_t out[AUTH_PROOF])
{
    uint8_t more[AUTH_PROOF + 16 * AUTH_ADDRESSES];
    uint8_t *p = message_put(more, e->server_proof, AUTH_PROOF);

    assert(count <= AUTH_ADDRESSES);
    p = message_put(p, addresses, 16 * count);
    prove(e, s, "muster auth 1 client", more, (size_t)(p - more), out);
}

void auth_session_key(const struct auth_side *e, const struct auth_settings *s,
                      uint8_t out[AUTH_SECRET])
{
    prove(e, s, "muster auth 1 session", e->server_proof, AUTH_PROOF, out);
}

/* Sets field by field, because `said` is large and only its first said_size bytes
 * count. */
static void side_start(struct auth_side *e, bool server, enum auth_kind expects)
{
    e->server = server;
    e->expects = expects;
    e->said_size = e->open_size = 0;
    memset(e->server_proof, 0, sizeof e->server_proof);
}

static void side_remember(struct auth_side *e, const uint8_t *p, size_t n)
{
    assert(n <= sizeof e->said - e->said_size);
    memcpy(e->said + e->said_size, p, n);
    e->said_size += n;
}

/* ---- The two sides ---- */

static int auth_refuse(uint8_t out[AUTH_MESSAGE], size_t *n, struct muster_error *err,
                       const char *theirs, const char *ours)
{
    *n = auth_encode(
        &(struct auth_message){ .kind = AUTH_REFUSED, .text = span_str(theirs) }, out);
    return err_set(err, MUSTER_EACCES, "%s", ours);
}

static int unexpected(const struct auth_message *m, size_t *n, struct muster_error *err)
{
    *n = 0;
    if (m->kind == AUTH_REFUSED)
        return err_set(err, MUSTER_EACCES, "it says: %.*s", (int)m->text.n,
                       (const char *)m->text.p);
    return err_set(err, MUSTER_EPROTO,
                   "it sent a handshake message of kind %u out of turn",
                   (unsigned)m->kind);
}

/* Each side gets its own message, which names the options of the command line. */
static int compare_flags(unsigned client, unsigned server, uint8_t out[AUTH_MESSAGE],
                         size_t *n, struct muster_error *err)
{
    if (client == server)
        return 0;
    if ((client ^ server) & AUTH_ENCRYPT)
        return auth_refuse(
            out, n, err, "--encrypt must be given on all nodes of the job or on none",
            "it was started with --encrypt and this node without, or the "
            "other way round");
    return auth_refuse(
        out, n, err,
        "one node takes its secret from munge and the other from a token: give "
        "all of them the same --token-file, or none",
        "one of the two takes its secret from munge and the other from a token "
        "file");
}

size_t auth_client_open(struct auth_side *c, const struct auth_settings *s,
                        const uint8_t nonce[AUTH_NONCE], struct span name,
                        uint8_t out[AUTH_MESSAGE])
{
    const struct auth_message m = { .kind = AUTH_OPEN,
                                    .flags = s->flags,
                                    .nonce = nonce,
                                    .run = s->any_run ? no_run : s->run,
                                    .name = name };
    const size_t n = auth_encode(&m, out);

    side_start(c, false, AUTH_CHALLENGE);
    side_remember(c, out, n);
    c->open_size = n;
    return n;
}

bool auth_names_run(const struct auth_message *open)
{
    return !auth_equal(open->run, no_run, AUTH_PROOF);
}

int auth_server_check(const struct auth_settings *s, const struct auth_message *open,
                      uint8_t out[AUTH_MESSAGE], size_t *n, struct muster_error *err)
{
    int rc;

    if (open->kind != AUTH_OPEN)
        return unexpected(open, n, err);
    rc = compare_flags(open->flags, s->flags, out, n, err);
    if (rc < 0)
        return rc;
    if (!s->any_run && auth_names_run(open) &&
        !auth_equal(open->run, s->run, AUTH_PROOF))
        return auth_refuse(
            out, n, err,
            "this is another job's store: check --rdzv-id and the endpoint",
            "it belongs to a job with another --rdzv-id");
    return 0;
}

int auth_server_open(struct auth_side *v, const struct auth_settings *s,
                     const struct auth_message *open, struct span bytes,
                     const uint8_t nonce[AUTH_NONCE], struct span credential,
                     uint8_t out[AUTH_MESSAGE], size_t *n, struct muster_error *err)
{
    struct auth_message m = { .kind = AUTH_CHALLENGE,
                              .flags = s->flags,
                              .nonce = nonce,
                              .credential = credential,
                              .proof = v->server_proof };
    int rc;

    side_start(v, true, AUTH_OPEN);
    rc = auth_server_check(s, open, out, n, err);
    if (rc < 0)
        return rc;
    v->open_size = bytes.n;
    side_remember(v, bytes.p, bytes.n);
    *n = auth_encode(&m, out); /* The proof at its end is filled in below. */
    assert(*n > AUTH_PROOF);
    side_remember(v, out, *n - AUTH_PROOF);
    prove_server(v, s, v->server_proof);
    memcpy(out + *n - AUTH_PROOF, v->server_proof, AUTH_PROOF);
    v->expects = AUTH_ANSWER;
    return 0;
}

int auth_client_answer(struct auth_side *c, const struct auth_settings *s,
                       const struct auth_message *challenge, struct span bytes,
                       const uint8_t *addresses, size_t count,
                       uint8_t out[AUTH_MESSAGE], size_t *n, struct muster_error *err)
{
    uint8_t proof[AUTH_PROOF];
    int rc;

    if (challenge->kind != AUTH_CHALLENGE || c->expects != AUTH_CHALLENGE)
        return unexpected(challenge, n, err);
    rc = compare_flags(s->flags, challenge->flags, out, n, err);
    if (rc < 0)
        return rc;
    assert(!c->server && c->open_size > 0 && bytes.n > AUTH_PROOF);
    c->said_size = c->open_size;
    side_remember(c, bytes.p, bytes.n - AUTH_PROOF);
    prove_server(c, s, c->server_proof);
    if (!auth_equal(c->server_proof, challenge->proof, AUTH_PROOF))
        return auth_refuse(out, n, err, "the secrets of the two nodes differ",
                           "it holds another secret: all nodes need the same token");
    count = MIN_OF(count, AUTH_ADDRESSES);
    prove_client(c, s, addresses, count, proof);
    *n = auth_encode(&(struct auth_message){ .kind = AUTH_ANSWER,
                                             .proof = proof,
                                             .addresses = addresses,
                                             .address_count = count },
                     out);
    c->expects = AUTH_REFUSED; /* The only message that may still come. */
    return 0;
}

int auth_server_finish(struct auth_side *v, const struct auth_settings *s,
                       const struct auth_message *answer, uint8_t out[AUTH_MESSAGE],
                       size_t *n, struct muster_error *err)
{
    uint8_t proof[AUTH_PROOF];

    if (answer->kind != AUTH_ANSWER || v->expects != AUTH_ANSWER)
        return unexpected(answer, n, err);
    v->expects = AUTH_REFUSED; /* There is only one try. */
    prove_client(v, s, answer->addresses, answer->address_count, proof);
    if (!auth_equal(proof, answer->proof, AUTH_PROOF))
        return auth_refuse(out, n, err,
                           "the proof is wrong: the secrets of the two differ",
                           "its proof is wrong: it holds another secret");
    *n = 0;
    return 0;
}
