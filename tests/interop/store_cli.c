/* store_cli.c - the public store API on a line of text: reads calls from stdin, writes
 * one line for each. For tests in Python.
 *
 *   store_cli tcp HOST PORT TIMEOUT_MS [WORLD_SIZE]
 *   store_cli serve BIND|- PORT TIMEOUT_MS [WORLD_SIZE]
 *   store_cli file PATH WORLD_SIZE TIMEOUT_MS
 *   store_cli hash TIMEOUT_MS
 *
 * Words are separated by blanks; in keys and values %XX stands for a byte, % alone for
 * nothing at all. Answers: "ok ..." or "err CODE text". */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "muster/store.h"

#define WORDS_MAX 4096

static struct muster_store *stack[16]; /* the store, and views and clones of it */
static size_t depth;
static char *words[WORDS_MAX];
static size_t sizes[WORDS_MAX]; /* decoded */
static size_t count;

static size_t decode(char *word)
{
    char *to = word;

    for (const char *p = word; *p; p++) {
        unsigned byte;

        if (*p != '%')
            *to++ = *p;
        else if (sscanf(p + 1, "%2x", &byte) == 1) {
            *to++ = (char)byte;
            p += 2;
        }
    }
    *to = '\0';
    return (size_t)(to - word);
}

static void split(char *line)
{
    char *save = NULL;

    count = 0;
    for (char *w = strtok_r(line, " \n", &save); w && count < WORDS_MAX;
         w = strtok_r(NULL, " \n", &save)) {
        sizes[count] = decode(w);
        words[count++] = w;
    }
}

static void print_bytes(const struct muster_bytes *b)
{
    const unsigned char *p = b->data;

    putchar(' ');
    if (b->size == 0)
        putchar('%');
    for (size_t i = 0; i < b->size; i++)
        if (p[i] > ' ' && p[i] < 127 && p[i] != '%')
            putchar(p[i]);
        else
            printf("%%%02x", p[i]);
}

static void print_list(struct muster_bytes_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        print_bytes(&list->items[i]);
    muster_bytes_list_free(list);
}

static int finish(int rc, const struct muster_error *err)
{
    if (rc == 0)
        printf("\n");
    else
        printf("err %s %s\n", muster_code_name(rc), err->text);
    if (rc < 0 && err->code != rc)
        printf("the error says %d, the call %d\n", err->code, rc);
    fflush(stdout);
    return rc;
}

static int ok(int rc)
{
    if (rc == 0)
        printf("ok");
    return rc;
}

static int run_bytes(const char *what, struct muster_store *s, struct muster_error *err)
{
    struct muster_bytes b = { 0 };
    int rc;

    if (strcmp(what, "get") == 0)
        rc = muster_store_get(s, words[1], &b, err);
    else if (strcmp(what, "pop") == 0)
        rc = muster_store_queue_pop(s, words[1], atoi(words[2]) != 0, &b, err);
    else
        rc = muster_store_compare_set(s, words[1], words[2], sizes[2], words[3],
                                      sizes[3], &b, err);
    if (ok(rc) == 0)
        print_bytes(&b);
    muster_bytes_free(&b);
    return rc;
}

static int run_number(const char *what, struct muster_store *s,
                      struct muster_error *err)
{
    int64_t n = 0;
    int rc;

    if (strcmp(what, "add") == 0)
        rc = muster_store_add(s, words[1], strtoll(words[2], NULL, 10), &n, err);
    else if (strcmp(what, "num") == 0)
        rc = muster_store_num_keys(s, &n, err);
    else
        rc = muster_store_queue_len(s, words[1], &n, err);
    if (ok(rc) == 0)
        printf(" %" PRId64, n);
    return rc;
}

static int run_flag(const char *what, struct muster_store *s, struct muster_error *err)
{
    bool flag = false;
    const int rc = strcmp(what, "delete") == 0
                       ? muster_store_delete(s, words[1], &flag, err)
                       : muster_store_check(s, (const char *const *)words + 1,
                                            count - 1, &flag, err);

    if (ok(rc) == 0)
        printf(" %d", flag);
    return rc;
}

static int run_list(const char *what, struct muster_store *s, struct muster_error *err)
{
    struct muster_bytes_list list = { 0 };
    const int rc = strcmp(what, "list") == 0
                       ? muster_store_list_keys(s, &list, err)
                       : muster_store_multi_get(s, (const char *const *)words + 1,
                                                count - 1, &list, err);

    if (ok(rc) == 0)
        print_list(&list);
    return rc;
}

static int run_mset(struct muster_store *s, struct muster_error *err)
{
    const size_t pairs = (count - 1) / 2;
    const char **keys = calloc(pairs + 1, sizeof *keys);
    struct muster_bytes *values = calloc(pairs + 1, sizeof *values);

    for (size_t i = 0; i < pairs; i++) {
        keys[i] = words[1 + 2 * i];
        values[i] = (struct muster_bytes){ words[2 + 2 * i], sizes[2 + 2 * i] };
    }
    const int rc = muster_store_multi_set(s, keys, values, pairs, err);
    free(keys);
    free(values);
    return ok(rc);
}

/* A value of so many bytes, for limits. */
static int run_big(struct muster_store *s, struct muster_error *err)
{
    const size_t n = strtoull(words[2], NULL, 10);
    char *bytes = malloc(n + 1);

    memset(bytes, 'x', n);
    const int rc = muster_store_set(s, words[1], bytes, n, err);
    free(bytes);
    return ok(rc);
}

static int run_words(struct muster_store *s, struct muster_error *err)
{
    const char *what = words[0];
    struct muster_store *made = NULL;
    int rc = 0;

    if (strcmp(what, "get") == 0 || strcmp(what, "pop") == 0 ||
        strcmp(what, "cas") == 0)
        return run_bytes(what, s, err);
    if (strcmp(what, "add") == 0 || strcmp(what, "num") == 0 ||
        strcmp(what, "len") == 0)
        return run_number(what, s, err);
    if (strcmp(what, "delete") == 0 || strcmp(what, "check") == 0)
        return run_flag(what, s, err);
    if (strcmp(what, "list") == 0 || strcmp(what, "mget") == 0)
        return run_list(what, s, err);
    if (strcmp(what, "mset") == 0)
        return run_mset(s, err);
    if (strcmp(what, "big") == 0)
        return run_big(s, err);
    if (strcmp(what, "set") == 0)
        return ok(muster_store_set(s, words[1], words[2], sizes[2], err));
    if (strcmp(what, "append") == 0)
        return ok(muster_store_append(s, words[1], words[2], sizes[2], err));
    if (strcmp(what, "push") == 0)
        return ok(muster_store_queue_push(s, words[1], words[2], sizes[2], err));
    if (strcmp(what, "wait") == 0)
        return ok(muster_store_wait(s, (const char *const *)words + 2, count - 2,
                                    strtoull(words[1], NULL, 10), err));
    if (strcmp(what, "barrier") == 0)
        return ok(muster_store_barrier(s, words[1], strtoll(words[2], NULL, 10),
                                       strtoull(words[3], NULL, 10), err));
    if (strcmp(what, "timeout") == 0)
        muster_store_set_timeout(s, strtoull(words[1], NULL, 10));
    else if (strcmp(what, "prefix") == 0)
        rc = muster_store_open_prefix(s, words[1], &made, err);
    else if (strcmp(what, "clone") == 0)
        rc = muster_store_clone(s, &made, err);
    else if (strcmp(what, "up") == 0)
        muster_store_close(stack[--depth]);
    else
        printf("what is %s? ", what);
    if (made)
        stack[depth++] = made;
    return ok(rc);
}

static int open_store(int argc, char **argv, struct muster_error *err)
{
    struct muster_store_options o;
    const char *kind = argc > 2 ? argv[1] : "";

    if (strcmp(kind, "hash") == 0)
        return muster_store_open_hash(strtoull(argv[2], NULL, 10), &stack[0], err);
    if (strcmp(kind, "file") == 0)
        return muster_store_open_file(argv[2], strtoll(argv[3], NULL, 10),
                                      strtoull(argv[4], NULL, 10), &stack[0], err);
    muster_store_options_init(&o);
    o.serve = strcmp(kind, "serve") == 0;
    if (!o.serve)
        o.host = argv[2];
    else if (strcmp(argv[2], "-") != 0)
        o.bind = argv[2];
    o.port = (uint16_t)atoi(argv[3]);
    o.timeout_ms = strtoull(argv[4], NULL, 10);
    if (argc > 5)
        o.world_size = strtoll(argv[5], NULL, 10);
    return muster_store_open_tcp(&o, &stack[0], err);
}

int main(int argc, char **argv)
{
    struct muster_error err = { 0 };
    char *line = NULL;
    size_t room = 0;

    if (finish(ok(open_store(argc, argv, &err)), &err) < 0)
        return 1;
    depth = 1;
    while (depth && getline(&line, &room, stdin) > 0) {
        split(line);
        if (count == 0)
            continue;
        if (strcmp(words[0], "port") == 0)
            printf("ok %u\n", muster_store_port(stack[depth - 1]));
        else if (strcmp(words[0], "name") == 0)
            printf("ok %s\n", muster_store_name(stack[depth - 1]));
        else
            (void)finish(run_words(stack[depth - 1], &err), &err);
        fflush(stdout);
    }
    while (depth)
        muster_store_close(stack[--depth]);
    free(line);
    return 0;
}
