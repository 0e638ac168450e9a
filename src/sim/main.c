/* main.c - muster-sim: random runs by seed, and cases with transcripts.
 *
 *   muster-sim --seed N [--kind K] [-v]     one run; -v prints its transcript
 *   muster-sim --seeds A:B [--kind K]       all of A .. B-1 (N: of 0 .. N-1); the first
 *                                           failure ends it
 *   muster-sim --case FILE... [--update]    the transcript must be the file's own
 *   muster-sim --nodes N [--kind ours]      one large group, hosted unless told
 * otherwise
 *
 * K: ours, mixed (with torchrun's protocol), torch, hosted, fallback, visited (hosted,
 * with torchrun's protocol), etcd-v2, etcd-v3, etcd, or any. A failure prints the one
 * line that plays it again.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/sim.h"

static const char *const kinds[] = { "ours",    "mixed",   "hosted",  "fallback",
                                     "visited", "etcd-v2", "etcd-v3", "etcd" };

static const char *kind_of(const char *kind, uint64_t seed)
{
    return strcmp(kind, "any") == 0 ? kinds[seed % ARRAY_LEN(kinds)] : kind;
}

static int play(uint64_t from, uint64_t to, const char *kind, bool loud)
{
    const double begin = sim_cpu_seconds();
    uint64_t node_us = 0;
    char fail[1024];
    double used;

    for (uint64_t seed = from; seed < to; seed++) {
        const char *k = kind_of(kind, seed);

        if (!sim_play(seed, k, loud, &node_us, fail, sizeof fail)) {
            printf("FAILED %s\nplay it again: muster-sim --seed %llu --kind %s -v\n",
                   fail, (unsigned long long)seed, k);
            return 1;
        }
    }
    used = sim_cpu_seconds() - begin;
    printf("%llu seeds of kind %s: every promise kept; %.1f simulated node-hours in "
           "%.2f s "
           "of CPU, %.0f node-hours a second\n",
           (unsigned long long)(to - from), kind, (double)node_us / 3.6e9, used,
           (double)node_us / 3.6e9 / used);
    return 0;
}

static char *read_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    size_t n = 0, room = 1 << 20;
    char *text = malloc(room + 1);

    if (!f || !text) {
        fprintf(stderr, "muster-sim: cannot read %s\n", path);
        exit(2);
    }
    n = fread(text, 1, room, f);
    text[n] = '\0';
    (void)fclose(f);
    return text;
}

/* Says where the transcript goes another way. */
static void show_difference(const char *path, const char *want, struct span got)
{
    size_t line = 1, at = 0;

    while (at < got.n && want[at] == (char)got.p[at]) {
        line += got.p[at] == '\n';
        at++;
    }
    while (at && got.p[at - 1] != '\n')
        at--;
    printf("FAILED %s, line %zu:\n  expected: %.*s\n  came:     %.*s\n", path, line,
           (int)strcspn(want + at, "\n"), want + at,
           (int)(got.n - at < 200 ? strcspn((const char *)got.p + at, "\n") : 200),
           (const char *)got.p + at);
}

static int run_case(const char *path, bool update)
{
    char *want = read_file(path);
    struct buf out;
    int rc;
    bool same;

    buf_init(&out, SIZE_MAX);
    rc = sim_script(want, &out);
    (void)buf_u8(&out, 0);
    same = strcmp(want, (const char *)buf_data(&out)) == 0;
    if (!same && update) {
        FILE *f = fopen(path, "wb");

        if (f) {
            (void)fwrite(buf_data(&out), 1, buf_len(&out) - 1, f);
            (void)fclose(f);
        }
    } else if (!same) {
        show_difference(path, want, buf_span(&out));
    }
    if (rc < 0)
        printf("FAILED %s: %s\n", path, muster_code_text(rc));
    buf_fini(&out);
    free(want);
    return rc < 0 || (!same && !update);
}

int main(int argc, char **argv)
{
    unsigned long long from = 0, to = 1000, nodes = 0;
    const char *kind = "any";
    bool loud = false, update = false, cases = false;
    int failed = 0, count = 0;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
            from = strtoull(argv[++i], NULL, 10);
            to = from + 1;
        } else if (strcmp(argv[i], "--seeds") == 0 && i + 1 < argc) {
            if (sscanf(argv[++i], "%llu:%llu", &from, &to) != 2) {
                from = 0;
                to = strtoull(argv[i], NULL, 10);
            }
        } else if (strcmp(argv[i], "--kind") == 0 && i + 1 < argc) {
            kind = argv[++i];
        } else if (strcmp(argv[i], "--nodes") == 0 && i + 1 < argc) {
            nodes = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "-v") == 0) {
            loud = true;
        } else if (strcmp(argv[i], "--update") == 0) {
            update = true;
        } else if (strcmp(argv[i], "--case") == 0) {
            cases = true;
        } else if (cases) {
            failed += run_case(argv[i], update);
            count++;
        } else {
            fprintf(stderr, "usage: muster-sim [--seed N | --seeds A:B | --nodes N] "
                            "[--kind K] [-v] | [--update] --case FILE...\n");
            return 2;
        }
    }
    if (nodes)
        return sim_crowd((size_t)nodes,
                         strcmp(kind, "ours") == 0 ? SIM_OURS : SIM_HOSTED);
    if (!cases)
        return play(from, to, kind, loud);
    printf("%d cases, %d failed\n", count, failed);
    return failed != 0;
}
