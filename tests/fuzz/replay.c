/* replay.c - feeds each file of the given folders to a fuzz target, as a plain test. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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
    /* In memory of just that size, so that a sanitizer sees a read past its end. */
    data = realloc(data, size ? size : 1);
    (void)LLVMFuzzerTestOneInput(data, size);
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
