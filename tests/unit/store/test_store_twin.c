/* test_store_twin.c - the engine against its slow twin, from seeds; the fuzzer
 * fuzz_store plays the same game with scripts of its own. */
#include "testing.h"

#include "../../fuzz/store_twin.h"
#include "base/rng.h"

static void engine_and_twin_agree(void **state)
{
    uint8_t script[4096];

    (void)state;
    for (uint64_t seed = 0; seed < 3000; seed++) {
        struct rng r;
        size_t n;

        rng_init(&r, seed);
        n = 16 + rng_below(&r, sizeof script - 16);
        for (size_t i = 0; i < n; i++)
            script[i] = (uint8_t)rng_u64(&r);
        twin_play(script, n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(engine_and_twin_agree),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
