/* nearest.h - "did you mean": the word of a list that somebody has most likely meant.
 * Pure. */
#ifndef BASE_NEAREST_H
#define BASE_NEAREST_H

#include "base/base.h"

/* How many letters must be changed, left out, added or swapped with their neighbour to
 * make one word of the other; hyphen and underscore are the same. Words of more than 63
 * letters are far from everything. */
unsigned word_distance(struct span a, struct span b);

/* The best so far of a search; zeroed to begin with. */
struct nearest {
    const char *word; /* borrowed; NULL: none is near enough */
    unsigned distance;
};

/* Takes a candidate into account: one that a third of the letters or fewer set apart.
 */
void nearest_try(struct nearest *n, struct span meant, const char *candidate);

#endif
