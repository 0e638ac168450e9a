/* nearest.c - see nearest.h. */
#include "base/nearest.h"

#define LONGEST 63

static uint8_t letter(uint8_t c)
{
    return c == '_' ? '-' : c;
}

unsigned word_distance(struct span a, struct span b)
{
    unsigned rows[3][LONGEST + 1]; /* the one before the last, the last, this one */

    if (a.n > LONGEST || b.n > LONGEST)
        return UINT32_MAX;
    for (size_t j = 0; j <= b.n; j++)
        rows[1][j] = (unsigned)j;
    for (size_t i = 1; i <= a.n; i++) {
        rows[2][0] = (unsigned)i;
        for (size_t j = 1; j <= b.n; j++) {
            const uint8_t x = letter(a.p[i - 1]), y = letter(b.p[j - 1]);
            unsigned best = rows[1][j - 1] + (x != y);

            best = MIN_OF(best, rows[1][j] + 1);
            best = MIN_OF(best, rows[2][j - 1] + 1);
            if (i > 1 && j > 1 && x == letter(b.p[j - 2]) && letter(a.p[i - 2]) == y)
                best = MIN_OF(best, rows[0][j - 2] + 1);
            rows[2][j] = best;
        }
        memcpy(rows[0], rows[1], sizeof rows[0]);
        memcpy(rows[1], rows[2], sizeof rows[1]);
    }
    return rows[1][b.n];
}

/* "cd10" for "c10d": every letter is there, in another order. */
static bool same_letters(struct span a, struct span b)
{
    int count[256] = { 0 };

    for (size_t i = 0; i < a.n; i++)
        count[letter(a.p[i])]++;
    for (size_t i = 0; i < b.n; i++)
        if (count[letter(b.p[i])]-- == 0)
            return false;
    return a.n == b.n;
}

void nearest_try(struct nearest *n, struct span meant, const char *candidate)
{
    const size_t longer = MAX_OF(meant.n, strlen(candidate));
    unsigned distance = word_distance(meant, span_str(candidate));

    if (distance > 1 && same_letters(meant, span_str(candidate)))
        distance = 1;
    if (distance > MAX_OF(longer / 3, 1u) || distance >= longer ||
        (n->word && n->distance <= distance))
        return;
    *n = (struct nearest){ candidate, distance };
}
