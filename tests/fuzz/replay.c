/* replay.c - feeds each file of the given folders to a fuzz target, as a plain test:
 * whole, cut off at every length, and with one bit wrong at every place (large files:
 * at a thousand of them). */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define PLACES 1024u

/* In memory of just that size, so that a sanitizer sees a read past its end. */
static void play(const uint8_t *data, size_t size, size_t wrong)
{
    uint8_t *copy = malloc(size ? size : 1);

    if (!copy)
        abort();
    if (size)
        memcpy(copy, data, size);
    if (wrong < size)
        copy[wrong] ^= (uint8_t)(1u << wrong % 8);
    (void)LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static void play_all(const uint8_t *data, size_t size)
{
    const size_t step = size / PLACES + 1;

    play(data, size, SIZE_MAX);
    for (size_t i = 0; i < size; i += step) {
        play(data, i, SIZE_MAX);
        play(data, size, i);
    }
}

static int replay(const char *path)
{
    FILE *f = fopen(path, "rb");
    uint8_t *data = NULL;
    size_t size = 0;

    if (!f) {
        perror(path);
        return 1;
    }
    for (;;) {
        uint8_t *more = realloc(data, size + 65536);

        if (!more)
            abort();
        data = more;
        const size_t n = fread(data + size, 1, 65536, f);
        if (n == 0)
            break;
        size += n;
    }
    (void)fclose(f);
    play_all(data, size);
    free(data);
    return 0;
}

int main(int argc, char **argv)
{
    size_t count = 0;
    int bad = 0;

    for (int i = 1; i < argc; i++) {
        DIR *dir = opendir(argv[i]);

        if (!dir) {
            perror(argv[i]);
            return 1;
        }
        for (struct dirent *e; (e = readdir(dir));) {
            char path[4096];

            if (e->d_name[0] == '.')
                continue;
            (void)snprintf(path, sizeof path, "%s/%s", argv[i], e->d_name);
            bad += replay(path);
            count++;
        }
        (void)closedir(dir);
    }
    printf("%zu inputs\n", count);
    return bad || count == 0;
}
