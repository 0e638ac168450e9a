/* test_handshake.c - auth/core: both sides by hand, and everything that somebody in
 * between, or with another secret, could try. */
#include "auth/core/auth.h"
#include "testing.h"

/* Mixes well enough for a test: equal input, equal output, and nothing else. What it is
 * not is hard to invert, which no test here is about. */
static void mix(const uint8_t *key, size_t key_size, struct span data, uint8_t out[32])
{
    for (unsigned i = 0; i < 4; i++) {
        uint64_t h = 0xcbf29ce484222325u + i;

        for (size_t j = 0; j < key_size; j++)
            h = (h ^ key[j]) * 0x100000001b3u;
        h = (h ^ 0x5a) * 0x100000001b3u;
        for (size_t j = 0; j < data.n; j++)
            h = (h ^ data.p[j]) * 0x100000001b3u;
        memcpy(out + 8 * i, &h, 8);
    }
}

static const uint8_t addresses[2][16] = { { 1, 2, 3 }, { 4, 5, 6 } };

struct play {
    struct auth *client, *server;
    struct auth_side c, s;
    uint8_t open[AUTH_MESSAGE], challenge[AUTH_MESSAGE], answer[AUTH_MESSAGE],
        verdict[AUTH_MESSAGE];
    size_t open_size, challenge_size, answer_size, verdict_size;
    struct muster_error err;
};

static struct auth *make(const char *token, const char *run, unsigned flags)
{
    struct auth *a;
    struct muster_error err;

    assert_int_equal(auth_new(mix, span_str(token), run, flags, "a test", &a, &err), 0);
    return a;
}

static const char secret[] = "a token of enough bytes";

static void begin(struct play *p, const char *theirs, const char *run, unsigned flags)
{
    static const uint8_t nonce[AUTH_NONCE] = { 1 };

    memset(p, 0, sizeof *p);
    p->client = make(theirs, run, flags);
    p->server = make(secret, "run", 0);
    p->open_size =
        auth_client_open(&p->c, &p->client->settings, nonce, span_str("node"), p->open);
}

static void end(struct play *p)
{
    auth_unref(p->client);
    auth_unref(p->server);
}

static int server_open(struct play *p, uint8_t first)
{
    const uint8_t nonce[AUTH_NONCE] = { first };
    struct auth_message m;

    if (auth_decode(span_of(p->open, p->open_size), &m, &p->err) < 0)
        return p->err.code;
    return auth_server_open(&p->s, &p->server->settings, &m,
                            span_of(p->open, p->open_size), nonce, span_of(NULL, 0),
                            p->challenge, &p->challenge_size, &p->err);
}

static int client_answer(struct play *p)
{
    struct auth_message m;

    if (auth_decode(span_of(p->challenge, p->challenge_size), &m, &p->err) < 0)
        return p->err.code;
    return auth_client_answer(&p->c, &p->client->settings, &m,
                              span_of(p->challenge, p->challenge_size), addresses[0], 2,
                              p->answer, &p->answer_size, &p->err);
}

static int server_verdict(struct play *p)
{
    struct auth_message m;

    if (auth_decode(span_of(p->answer, p->answer_size), &m, &p->err) < 0)
        return p->err.code;
    return auth_server_finish(&p->s, &p->server->settings, &m, p->verdict,
                              &p->verdict_size, &p->err);
}

static void admits(void **state)
{
    struct play p;
    uint8_t a[AUTH_SECRET], b[AUTH_SECRET];

    (void)state;
    begin(&p, secret, "run", 0);
    assert_int_equal(server_open(&p, 2), 0);
    assert_int_equal(client_answer(&p), 0);
    assert_int_equal(server_verdict(&p), 0);
    assert_int_equal(p.verdict_size, 0); /* The client does not wait for a word. */
    auth_session_key(&p.c, &p.client->settings, a);
    auth_session_key(&p.s, &p.server->settings, b);
    assert_memory_equal(a, b, sizeof a);
    /* One try: the same answer again is out of turn. */
    assert_int_equal(server_verdict(&p), MUSTER_EPROTO);
    end(&p);
}

static void refuses(void **state)
{
    struct play p;

    (void)state;
    begin(&p, "another token altogether", "run", 0); /* The client notices first. */
    assert_int_equal(server_open(&p, 2), 0);
    assert_int_equal(client_answer(&p), MUSTER_EACCES);
    assert_non_null(strstr(p.err.text, "another secret"));
    assert_int_equal(server_verdict(&p), MUSTER_EACCES); /* and says so to the server */
    end(&p);

    begin(&p, secret, "another run", 0);
    assert_int_equal(server_open(&p, 2), MUSTER_EACCES);
    assert_non_null(strstr(p.err.text, "--rdzv-id"));
    assert_int_equal(client_answer(&p), MUSTER_EACCES);
    assert_non_null(strstr(p.err.text, "another job's store"));
    end(&p);

    begin(&p, secret, "run", AUTH_ENCRYPT);
    assert_int_equal(server_open(&p, 2), MUSTER_EACCES);
    assert_non_null(strstr(p.err.text, "--encrypt"));
    end(&p);
}

/* An answer that was seen on the wire is worth nothing to another connection. */
static void replay(void **state)
{
    struct play p;
    uint8_t seen[AUTH_MESSAGE];
    size_t n;

    (void)state;
    begin(&p, secret, "run", 0);
    assert_int_equal(server_open(&p, 2), 0);
    assert_int_equal(client_answer(&p), 0);
    memcpy(seen, p.answer, p.answer_size);
    n = p.answer_size;
    assert_int_equal(server_open(&p, 3), 0); /* the same OPEN, another nonce of ours */
    memcpy(p.answer, seen, n);
    p.answer_size = n;
    assert_int_equal(server_verdict(&p), MUSTER_EACCES);
    end(&p);
}

/* A server without the secret sends the client's own proofs back. */
static void reflection(void **state)
{
    struct play p;
    struct auth_message m;

    (void)state;
    begin(&p, secret, "run", 0);
    assert_int_equal(server_open(&p, 2), 0);
    assert_int_equal(client_answer(&p), 0);
    /* The client's proof in the place of the server's. */
    assert_int_equal(auth_decode(span_of(p.answer, p.answer_size), &m, &p.err), 0);
    memcpy(p.challenge + p.challenge_size - AUTH_PROOF, m.proof, AUTH_PROOF);
    p.c.expects = AUTH_CHALLENGE;
    assert_int_equal(client_answer(&p), MUSTER_EACCES);
    /* And the server's in the place of the client's. */
    end(&p);
    begin(&p, secret, "run", 0);
    assert_int_equal(server_open(&p, 2), 0);
    assert_int_equal(client_answer(&p), 0);
    memcpy(p.answer + 2, p.challenge + p.challenge_size - AUTH_PROOF, AUTH_PROOF);
    assert_int_equal(server_verdict(&p), MUSTER_EACCES);
    end(&p);
}

/* Whatever one byte of whichever message somebody in between changes, nobody is
 * admitted: not the version, the flags, a nonce, the run, the name or an address. */
static void every_byte(void **state)
{
    struct play p;

    (void)state;
    for (unsigned which = 0; which < 3; which++) {
        for (size_t i = 0; i < 400; i++) {
            begin(&p, secret, "run", 0);
            if (which == 0 && i < p.open_size)
                p.open[i] ^= 1;
            int rc = server_open(&p, 2);
            if (which == 1 && i < p.challenge_size)
                p.challenge[i] ^= 1;
            if (rc == 0)
                rc = client_answer(&p);
            if (which == 2 && i < p.answer_size)
                p.answer[i] ^= 1;
            if (rc == 0)
                rc = server_verdict(&p);
            const size_t sizes[] = { p.open_size, p.challenge_size, p.answer_size };

            assert_true((rc == 0) == (i >= sizes[which]));
            end(&p);
        }
    }
}

static void cut_messages(void **state)
{
    struct play p;
    struct auth_message m;

    (void)state;
    begin(&p, secret, "run", 0);
    for (size_t n = 0; n < p.open_size; n++)
        assert_int_equal(auth_decode(span_of(p.open, n), &m, &p.err), MUSTER_EPROTO);
    assert_int_equal(auth_decode(span_of(p.open, p.open_size + 1), &m, &p.err),
                     MUSTER_EPROTO);
    end(&p);
}

static void bad_tokens(void **state)
{
    struct muster_error err;
    struct auth *a;

    (void)state;
    assert_int_equal(
        auth_new(mix, span_str("   short\n"), "run", 0, "token file /t", &a, &err),
        MUSTER_EINVAL);
    assert_non_null(strstr(err.text, "token file /t: a token of 5 bytes"));
    /* White space around a token, as editors leave it, does not count. */
    struct auth *b = make("\n a token of enough bytes \n", "run", 0);
    a = make(secret, "run", 0);
    assert_memory_equal(a->key, b->key, AUTH_SECRET);
    auth_unref(a);
    auth_unref(b);
}

static void constant_time(void **state)
{
    uint8_t a[32] = { 0 }, b[32] = { 0 };

    (void)state;
    assert_true(auth_equal(a, b, 32));
    for (int i = 0; i < 32; i++) {
        b[i] = 0x80;
        assert_false(auth_equal(a, b, 32));
        b[i] = 0;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(admits),     cmocka_unit_test(refuses),
        cmocka_unit_test(replay),     cmocka_unit_test(reflection),
        cmocka_unit_test(every_byte), cmocka_unit_test(cut_messages),
        cmocka_unit_test(bad_tokens), cmocka_unit_test(constant_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
