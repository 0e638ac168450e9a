/* rng.h - random numbers from a seed that the caller gives: the same seed gives the
 * same numbers. They are not fit for secrets. */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <stdint.h>

struct rng {
    uint64_t s[4];
};

void rng_init(struct rng *r, uint64_t seed);
uint64_t rng_u64(struct rng *r);
uint64_t rng_below(struct rng *r, uint64_t limit); /* 0 .. limit - 1; 0 if limit is 0 */
double rng_unit(struct rng *r);                    /* 0 <= x < 1 */

/* Mixes the bits of one word well, to derive seeds from other seeds. */
uint64_t rng_mix(uint64_t x);

#endif
