/* fuzz_handshake.c - proofs of strangers: whatever the bytes, nothing is read beyond
 * them, what was read is written back byte for byte, and nobody is admitted.
 *
 * Input: a byte that chooses the side that hears the rest, and the message. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "auth/core/auth.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Depends on all of its input; whoever fuzzes does not know the key. */
static void mix(const uint8_t *key, size_t key_size, struct span in, uint8_t out[32])
{
    uint64_t h = 0xcbf29ce484222325u;

    for (size_t i = 0; i < key_size; i++)
        h = (h ^ key[i]) * 0x100000001b3u;
    for (size_t i = 0; i < in.n; i++)
        h = (h ^ in.p[i]) * 0x100000001b3u;
    for (unsigned i = 0; i < 4; i++, h *= 0x9e3779b97f4a7c15u)
        memcpy(out + 8 * i, &h, 8);
}

static void hear(struct auth *a, unsigned side, struct span bytes)
{
    static const uint8_t nonce[AUTH_NONCE] = { 7 };
    uint8_t out[AUTH_MESSAGE];
    struct auth_message m;
    struct auth_side e = { 0 };
    size_t n = 0;

    if (auth_decode(bytes, &m, NULL) < 0)
        return;
    assert(auth_encode(&m, out) == bytes.n && memcmp(out, bytes.p, bytes.n) == 0);
    if (side == 0) {
        if (auth_server_open(&e, &a->settings, &m, bytes, nonce, span_of(NULL, 0), out,
                             &n, NULL) == 0)
            assert(m.kind == AUTH_OPEN && n > AUTH_PROOF);
    } else if (side == 1) {
        (void)auth_client_open(&e, &a->settings, nonce, span_str("n"), out);
        assert(auth_client_answer(&e, &a->settings, &m, bytes, NULL, 0, out, &n, NULL) <
               0);
    } else {
        e.expects = AUTH_ANSWER;
        assert(auth_server_finish(&e, &a->settings, &m, out, &n, NULL) < 0);
    }
    assert(n <= AUTH_MESSAGE);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct auth *a;

    if (!a && auth_new(mix, span_str("a token that nobody guesses"), NULL, 0, "fuzz",
                       &a, NULL) < 0)
        return 0;
    if (size)
        hear(a, data[0] % 3, span_of(data + 1, size - 1));
    return 0;
}
