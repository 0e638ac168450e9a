/* run_id.c - random run ids, made from random bytes of the caller. */
#include <stdio.h>

#include "launch/core/derive.h"

/* Sets the bits that mark a UUID as version 4. */
static void mark_version_4(const uint8_t random[16], uint8_t out[16])
{
    memcpy(out, random, 16);
    out[6] = (uint8_t)((out[6] & 0x0f) | 0x40);
    out[8] = (uint8_t)((out[8] & 0x3f) | 0x80);
}

void derive_uuid(const uint8_t random[16], char text[37])
{
    uint8_t u[16];
    size_t at = 0;

    mark_version_4(random, u);
    for (size_t i = 0; i < sizeof u; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            text[at++] = '-';
        (void)snprintf(text + at, 3, "%02x", u[i]);
        at += 2;
    }
}

void derive_uuid_decimal(const uint8_t random[16], char text[40])
{
    char digits[40];
    size_t n = 0;
    uint8_t u[16];
    unsigned __int128 v = 0;

    mark_version_4(random, u);
    for (size_t i = 0; i < sizeof u; i++)
        v = v << 8 | u[i];
    do
        digits[n++] = (char)('0' + (int)(v % 10));
    while ((v /= 10) != 0);
    for (size_t i = 0; i < n; i++)
        text[i] = digits[n - 1 - i];
    text[n] = '\0';
}
