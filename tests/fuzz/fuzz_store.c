/* fuzz_store.c - the engine as a whole: random requests of several peers, beside the
 * slow twin. The same as a test with seeds: tests/unit/store/test_store_twin.c. */
#include "store_twin.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    twin_play(data, size);
    return 0;
}
