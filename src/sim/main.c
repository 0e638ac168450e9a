/* main.c - muster-sim: random runs by seed, and cases with transcripts.
 *
 *   muster-sim --seed N [--kind K] [-v]     one run; -v prints its transcript
 *   muster-sim --seeds A:B [--kind K]       all of A .. B-1 (N: of 0 .. N-1); the first
 *                                           failure ends it, unless --keep-going
 *   muster-sim [--update] --case FILE...    the transcript must be the file's own
 *   muster-sim --nodes N [--kind ours]      one large group; kind hosted by default
 *
 * K: ours, mixed (some nodes follow torchrun's protocol), torch, hosted, fallback,
 * visited (hosted, but some nodes follow torchrun's protocol), or any. Or whole jobs
 * with the real drivers (job.h): job, job-c10d, job-static, and so on, which may end in
 * what goes wrong: job-c10d-calm, -reset, -fail, -storm, -memory, -starve. A failure
 * prints the command that plays it again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/job.h"
#include "sim/sim.h"

static const char *const kinds[] = { "ours", "mixed", "hosted", "fallback", "visited" };

static const char *kind_of(const char *kind, uint64_t seed)
{
    return strcmp(kind, "any") == 0 ? kinds[seed % ARRAY_LEN(kinds)] : kind;
}

/* Kinds of whole jobs: "job", "job-<backend>", "job-<backend>-<theme>". */
static const char *const job_backends[] = { "c10d",    "plain",   "static",
                                            "etcd-v3", "etcd-v2", "etcd" };
static const char *const job_themes[] = { "calm",    "reset",  "fail",
                                          "pause",   "storm",  "memory",
                                          "cluster", "starve", "any" };

static bool job_kind(const char *kind, uint64_t seed, const char **backend,
                     const char **theme)
{
    *backend = job_backends[seed % ARRAY_LEN(job_backends)];
    *theme = "any";
    if (strcmp(kind, "job") == 0)
        return true;
    for (size_t i = 0; i < ARRAY_LEN(job_backends); i++)
        for (size_t k = 0; k < ARRAY_LEN(job_themes); k++) {
            char name[40];

            *backend = job_backends[i];
            *theme = job_themes[k];
            (void)snprintf(name, sizeof name, "job-%s-%s", *backend, *theme);
            if (strcmp(kind, name) == 0)
                return true;
            (void)snprintf(name, sizeof name, "job-%s", *backend);
            if (strcmp(*theme, "any") == 0 && strcmp(kind, name) == 0)
                return true;
        }
    return false;
}

static bool play_job(uint64_t seed, const char *kind, bool loud, char *fail,
                     size_t size)
{
    const char *backend, *theme;

    if (job_kind(kind, seed, &backend, &theme) && job_play(seed, backend, theme, loud))
        return true;
    (void)snprintf(fail, size, "%s", os.fail);
    return false;
}

static bool play_one(uint64_t seed, const char *kind, bool loud, uint64_t *node_us,
                     char *fail, size_t size)
{
    if (strncmp(kind, "job", 3) != 0)
        return sim_play(seed, kind, loud, node_us, fail, size);
    job_node_us = 0;
    if (!play_job(seed, kind, loud, fail, size))
        return false;
    *node_us += job_node_us;
    return true;
}

static int play(uint64_t from, uint64_t to, const char *kind, bool loud, bool go_on)
{
    unsigned long long broken = 0;
    const double begin = sim_cpu_seconds();
    uint64_t node_us = 0;
    char fail[1024];
    double used;

    for (uint64_t seed = from; seed < to; seed++) {
        const char *k = kind_of(kind, seed);

        if (!play_one(seed, k, loud, &node_us, fail, sizeof fail)) {
            printf("FAILED %s\nplay it again: muster-sim --seed %llu --kind %s -v\n",
                   fail, (unsigned long long)seed, k);
            if (!go_on)
                return 1;
            broken++;
        }
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

/* ---- The command line ---- */

struct options {
    unsigned long long from, to, nodes;
    const char *kind;
    bool loud, update, go_on;
    int cases; /* the index of the first FILE, or 0 */
};

static bool known(const char *kind)
{
    const char *backend, *theme;

    if (job_kind(kind, 0, &backend, &theme))
        return true;
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        if (strcmp(kind, kinds[i]) == 0)
            return true;
    return strcmp(kind, "any") == 0 || strcmp(kind, "torch") == 0;
}

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
    const char *rest = "";

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
    return strcmp(name, "--kind") == 0 && known(value);
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
    struct options o = { .to = 1000, .kind = "any" };
    int failed = 0;

    if (!read_options(argc, argv, &o)) {
        fprintf(stderr, "usage: muster-sim [--seed N | --seeds A:B | --nodes N] "
                        "[--kind K] [-v] [--keep-going] | [--update] --case FILE...\n"
                        "K: any, torch");
        for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
            fprintf(stderr, ", %s", kinds[i]);
        fprintf(stderr, ", job[-BACKEND[-THEME]] with BACKEND: ");
        for (size_t i = 0; i < ARRAY_LEN(job_backends); i++)
            fprintf(stderr, "%s%s", i ? ", " : "", job_backends[i]);
        fprintf(stderr, "; THEME: ");
        for (size_t i = 0; i < ARRAY_LEN(job_themes); i++)
            fprintf(stderr, "%s%s", i ? ", " : "", job_themes[i]);
        fprintf(stderr, "\n");
        return 2;
    }
    if (o.nodes)
        return sim_crowd((size_t)o.nodes,
                         strcmp(o.kind, "ours") == 0 ? SIM_OURS : SIM_HOSTED);
    if (!o.cases)
        return play(o.from, o.to, o.kind, o.loud, o.go_on);
    for (int i = o.cases; i < argc; i++)
        failed += run_case(argv[i], o.update);
    printf("%d cases, %d failed\n", argc - o.cases, failed);
    return failed != 0;
}
