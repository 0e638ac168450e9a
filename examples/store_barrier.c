/* store_barrier.c - processes leave each other a word in a store, meet at a barrier,
 * and read what the others left.
 *
 *     store_barrier HOST PORT RANK WORLD_SIZE
 *
 * Start it WORLD_SIZE times, on one host or on several, with ranks from 0 on. Rank 0
 * runs the store. A PyTorch process with a torch.distributed.TCPStore(HOST, PORT,
 * WORLD_SIZE, RANK == 0) can take any of the places. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <muster/store.h>

static int failed(const char *what, const struct muster_error *err)
{
    fprintf(stderr, "%s: %s (%s)\n", what, err->text, muster_code_name(err->code));
    return 1;
}

static int read_words(struct muster_store *s, int64_t world_size,
                      struct muster_error *err)
{
    for (int64_t i = 0; i < world_size; i++) {
        struct muster_bytes word;
        char key[32];

        snprintf(key, sizeof key, "word/%" PRId64, i);
        if (muster_store_get(s, key, &word, err) < 0)
            return -1;
        printf("%" PRId64 " says: %s\n", i, (const char *)word.data);
        muster_bytes_free(&word);
    }
    return 0;
}

/* The store goes with rank 0, so that one leaves last. */
static int leave(struct muster_store *s, int64_t rank, int64_t world_size,
                 struct muster_error *err)
{
    int64_t gone;

    if (muster_store_add(s, "gone", 1, &gone, err) < 0)
        return -1;
    if (gone == world_size && muster_store_set(s, "all gone", "1", 1, err) < 0)
        return -1;
    const char *all_gone = "all gone";
    return rank == 0 ? muster_store_wait(s, &all_gone, 1, 60000, err) : 0;
}

int main(int argc, char **argv)
{
    struct muster_store_options options;
    struct muster_store *s;
    struct muster_error err;
    char key[32], word[64];

    if (argc != 5) {
        fprintf(stderr, "usage: %s HOST PORT RANK WORLD_SIZE\n", argv[0]);
        return 2;
    }
    const int64_t rank = strtoll(argv[3], NULL, 10);
    const int64_t world_size = strtoll(argv[4], NULL, 10);

    muster_store_options_init(&options);
    options.host = argv[1];
    options.port = (uint16_t)atoi(argv[2]);
    options.serve = rank == 0;
    options.world_size = world_size;
    options.timeout_ms = 60000;
    if (muster_store_open_tcp(&options, &s, &err) < 0)
        return failed("open", &err);

    snprintf(key, sizeof key, "word/%" PRId64, rank);
    snprintf(word, sizeof word, "hello from rank %" PRId64, rank);
    int rc = muster_store_set(s, key, word, strlen(word), &err);
    if (rc == 0)
        rc = muster_store_barrier(s, "all have written", world_size, 60000, &err);
    if (rc == 0)
        rc = read_words(s, world_size, &err);
    if (rc == 0)
        rc = leave(s, rank, world_size, &err);
    muster_store_close(s);
    return rc < 0 ? failed("store", &err) : 0;
}
