/* quote.c - see quote.h. */
#include "store/core/quote.h"

const char *quote(struct span bytes, char to[QUOTE_MAX])
{
    static const char hex[] = "0123456789abcdef";
    size_t at = 0;
    size_t i;

    to[at++] = '"';
    for (i = 0; i < bytes.n && at + 4 + sizeof "\"..." <= QUOTE_MAX; i++) {
        const uint8_t c = bytes.p[i];

        if (c >= ' ' && c < 127 && c != '"' && c != '\\') {
            to[at++] = (char)c;
            continue;
        }
        to[at++] = '\\';
        to[at++] = 'x';
        to[at++] = hex[c >> 4];
        to[at++] = hex[c & 15];
    }
    to[at++] = '"';
    memcpy(to + at, i < bytes.n ? "..." : "", i < bytes.n ? 4 : 1);
    return to;
}
