/* http_key.c - a key for the page of a job that has no secret; see http.h. */
#include <stdio.h>
#include <sys/random.h>

#include "status/http.h"

void status_http_random_key(char key[STATUS_KEY_SIZE])
{
    uint8_t bytes[(STATUS_KEY_SIZE - 1) / 2];

    *key = '\0';
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        return; /* Only the job's user can see the page then. */
    for (size_t i = 0; i < sizeof bytes; i++)
        (void)snprintf(key + 2 * i, 3, "%02x", bytes[i]);
}
