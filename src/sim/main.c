/* main.c - muster-sim: random runs by seed, and cases with transcripts.
 *
 *   muster-sim --seed N [--kind K] [-v]     one run; -v prints its transcript
 *   muster-sim --seeds A:B [--kind K]       all of A .. B-1 (N: of 0 .. N-1); the first
 *                                           failure ends it, unless --keep-going
 *   muster-sim [--update] --case FILE...    the transcript must be the file's own
 *   muster-sim --nodes N                    one large group
 *
 * K: job (a backend for each seed in turn), or a backend and what goes wrong, both as
 * below: c10d, c10d-storm, mixed-calm. "job-" may stand before it. Backends from
 * fallback on are groups on c10d in which not all nodes are alike: some do not use the
 * coordinator; or they run torchrun, on a store of keys alone (mixed; torch: all of
 * them) or on ours (visited). A failure prints the command that plays it again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/job.h"

static const char *const backends[] = { "c10d",    "plain", "static",   "etcd-v3",
                                        "etcd-v2", "etcd",  "fallback", "mixed",
                                        "visited", "torch" };
static const char *const themes[] = { "calm",   "reset",   "fail",   "pause", "storm",
                                      "memory", "cluster", "starve", "any" };

static bool parse_kind(const char *kind, uint64_t seed, const char **backend,
                       const char **theme)
{
    *backend = backends[seed % ARRAY_LEN(backends)];
    *theme = "any";
    if (strcmp(kind, "job") == 0)
        return true;
    if (strncmp(kind, "job-", 4) == 0)
        kind += 4;
    for (size_t i = 0; i < ARRAY_LEN(backends); i++)
        for (size_t k = 0; k < ARRAY_LEN(themes); k++) {
            char name[40];

            *backend = backends[i];
            *theme = themes[k];
            (void)snprintf(name, sizeof name, "%s-%s", *backend, *theme);
            if (strcmp(kind, name) == 0 ||
                (strcmp(*theme, "any") == 0 && strcmp(kind, *backend) == 0))
                return true;
        }
    return false;
}

static int play(uint64_t from, uint64_t to, const char *kind, bool loud, bool go_on)
{
    unsigned long long broken = 0;
    const double begin = sim_cpu_seconds();
    double used;

    job_node_us = 0;
    for (uint64_t seed = from; seed < to; seed++) {
        const char *backend, *theme;

        if (parse_kind(kind, seed, &backend, &theme) &&
            job_play(seed, backend, theme, loud))
            continue;
        printf("FAILED %s\nplay it again: muster-sim --seed %llu --kind %s -v\n",
               os.fail, (unsigned long long)seed, kind);
        if (!go_on)
            return 1;
        broken++;
    }
    used = sim_cpu_seconds() - begin;
    if (broken) {
        printf("%llu of %llu seeds of kind %s break a promise\n", broken,
               (unsigned long long)(to - from), kind);
        return 1;
    }
    printf("%llu seeds of kind %s: every promise kept; %.1f simulated node-hours in "
           "%.2f s "
           "of CPU, %.0f node-hours a second\n",
           (unsigned long long)(to - from), kind, (double)job_node_us / 3.6e9, used,
           (double)job_node_us / 3.6e9 / used);
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

/* Prints the first line in which the transcript differs. */
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
    rc = script_play(want, &out);
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

/* ---- The command line ---- */

struct options {
    unsigned long long from, to, nodes;
    const char *kind;
    bool loud, update, go_on;
    int cases; /* the index of the first FILE, or 0 */
};

static bool number(const char *text, unsigned long long *out, const char **rest)
{
    char *end = NULL;

    *out = strtoull(text, &end, 10);
    *rest = end;
    return text[0] >= '0' && text[0] <= '9';
}

/* N, or A:B with A < B. */
static bool seeds(const char *text, struct options *o)
{
    const char *rest;

    o->from = 0;
    if (!number(text, &o->to, &rest))
        return false;
    if (*rest == ':') {
        o->from = o->to;
        if (!number(rest + 1, &o->to, &rest))
            return false;
    }
    return *rest == '\0' && o->from < o->to;
}

/* Reads an option with a value; false if it is not known, or the value is wrong. */
static bool valued(const char *name, const char *value, struct options *o)
{
    const char *rest = "", *backend, *theme;

    if (strcmp(name, "--seed") == 0) {
        const bool ok = number(value, &o->from, &rest) && *rest == '\0';

        o->to = o->from + 1;
        return ok;
    }
    if (strcmp(name, "--seeds") == 0)
        return seeds(value, o);
    if (strcmp(name, "--nodes") == 0)
        return number(value, &o->nodes, &rest) && *rest == '\0' && o->nodes > 0;
    o->kind = value;
    return strcmp(name, "--kind") == 0 && parse_kind(value, 0, &backend, &theme);
}

static bool read_options(int argc, char **argv, struct options *o)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-v") == 0) {
            o->loud = true;
        } else if (strcmp(argv[i], "--keep-going") == 0) {
            o->go_on = true;
        } else if (strcmp(argv[i], "--update") == 0) {
            o->update = true;
        } else if (strcmp(argv[i], "--case") == 0) {
            o->cases = i + 1;
            return i + 1 < argc;
        } else if (i + 1 == argc || !valued(argv[i], argv[i + 1], o)) {
            fprintf(stderr, "muster-sim: cannot understand '%s%s%s'\n", argv[i],
                    i + 1 < argc ? " " : "", i + 1 < argc ? argv[i + 1] : "");
            return false;
        } else {
            i++;
        }
    }
    return true;
}

int main(int argc, char **argv)
{
    struct options o = { .to = 1000, .kind = "job" };
    int failed = 0;

    if (!read_options(argc, argv, &o)) {
        fprintf(stderr, "usage: muster-sim [--seed N | --seeds A:B | --nodes N] "
                        "[--kind K] [-v] [--keep-going] | [--update] --case FILE...\n"
                        "K: job, or [job-]BACKEND[-THEME] with BACKEND: ");
        for (size_t i = 0; i < ARRAY_LEN(backends); i++)
            fprintf(stderr, "%s%s", i ? ", " : "", backends[i]);
        fprintf(stderr, "; THEME: ");
        for (size_t i = 0; i < ARRAY_LEN(themes); i++)
            fprintf(stderr, "%s%s", i ? ", " : "", themes[i]);
        fprintf(stderr, "\n");
        return 2;
    }
    if (o.nodes)
        return crowd_play((size_t)o.nodes);
    if (!o.cases)
        return play(o.from, o.to, o.kind, o.loud, o.go_on);
    for (int i = o.cases; i < argc; i++)
        failed += run_case(argv[i], o.update);
    printf("%d cases, %d failed\n", argc - o.cases, failed);
    return failed != 0;
}
