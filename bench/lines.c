/* lines.c - numbered lines, as fast as they can be written, and whether all of them
 * have come through whole: for the tee of `muster run`. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

#define TEXT    "worker %03u line %010" PRIu64 " loss 0.12345678 lr 0.0001 tok/s 1234\n"
#define SIZE    64u /* of a line */
#define DIGITS  25u /* the last digit of the number */
#define BLOCK   1024u
#define WORKERS 1000u

/* The number in the line, plus one. */
static void count_up(char *line)
{
    char *digit = line + DIGITS;

    while (*digit == '9')
        *digit-- = '0';
    ++*digit;
}

static int write_all(const char *p, size_t n)
{
    while (n > 0) {
        const ssize_t sent = write(STDOUT_FILENO, p, n);
        if (sent < 0)
            return -1;
        p += sent;
        n -= (size_t)sent;
    }
    return 0;
}

/* lines WORKER COUNT */
int bench_lines(int argc, char **argv)
{
    static char block[BLOCK * SIZE];
    char line[SIZE + 1];

    if (argc != 3)
        return 2;
    uint64_t left = strtoull(argv[2], NULL, 10);
    snprintf(line, sizeof line, TEXT, (unsigned)strtoul(argv[1], NULL, 10) % WORKERS,
             (uint64_t)0);
    while (left > 0) {
        const size_t n = left < BLOCK ? (size_t)left : BLOCK;
        for (size_t i = 0; i < n; i++) {
            memcpy(block + i * SIZE, line, SIZE);
            count_up(line);
        }
        if (write_all(block, n * SIZE) < 0) {
            perror("muster-bench lines");
            return 1;
        }
        left -= n;
    }
    return 0;
}

/* Which worker's and which line, or false. */
static bool parse(const char *text, size_t n, unsigned *worker, uint64_t *number)
{
    char want[SIZE + 1];

    if (n != SIZE || sscanf(text, "worker %3u line %10" SCNu64, worker, number) != 2)
        return false;
    snprintf(want, sizeof want, TEXT, *worker % WORKERS, *number);
    return memcmp(want, text, SIZE) == 0;
}

/* lines-check WORKERS COUNT <console: every line of every worker, in its order, behind
 * the prefix of a tee. */
int bench_lines_check(int argc, char **argv)
{
    static uint64_t next[WORKERS];
    char *line = NULL;
    size_t size = 0;
    uint64_t good = 0, torn = 0, astray = 0;

    if (argc != 3)
        return 2;
    const unsigned workers = (unsigned)strtoul(argv[1], NULL, 10) % WORKERS;
    const uint64_t count = strtoull(argv[2], NULL, 10);
    for (ssize_t n; (n = getline(&line, &size, stdin)) > 0;) {
        const char *text = strstr(line, "]:");
        unsigned worker;
        uint64_t number;

        if (!text ||
            !parse(text + 2, (size_t)(line + n - text - 2), &worker, &number)) {
            torn++;
        } else if (worker >= workers || number != next[worker]) {
            astray++;
        } else {
            next[worker]++;
            good++;
        }
    }
    free(line);
    printf("{\"good\": %" PRIu64 ", \"torn\": %" PRIu64 ", \"astray\": %" PRIu64
           ", \"lost\": %" PRIu64 "}\n",
           good, torn, astray, workers * count - good);
    return good == workers * count && torn + astray == 0 ? 0 : 1;
}
