/* nearest.h - for "did you mean ...?": which word of a list a misspelt one is most
 * likely meant to be. Pure. */
#ifndef BASE_NEAREST_H
#define BASE_NEAREST_H

#include "base/base.h"

/* How many letters must be changed, left out, added or swapped with their neighbour to
 * turn one word into the other. Hyphen and underscore count as equal. UINT32_MAX if
 * either word has more than 63 letters. */
unsigned word_distance(struct span a, struct span b);

/* The best candidate of a search so far; zeroed to begin with. */
struct nearest {
    const char *word; /* borrowed; NULL: none is near enough */
    unsigned distance;
};

/* Takes a candidate into account if at most a third of the letters, but always one, may
 * differ, or if the letters are the same in another order. */
void nearest_try(struct nearest *n, struct span meant, const char *candidate);

#endif
