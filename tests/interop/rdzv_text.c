/* rdzv_text.c - for test_rdzv_text.py: reads requests, one line each, with fields in
 * hex, and prints what our parsers make of them.
 *   endpoint <hex text> <default port>     conf <hex text>
 *   int <hex text>                         bool <hex text> */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/core/endpoint.h"
#include "rendezvous/core/params.h"

static void unhex(char *text)
{
    size_t n = strlen(text) / 2;

    for (size_t i = 0; i < n; i++) {
        char byte[3] = { text[2 * i], text[2 * i + 1], 0 };

        text[i] = (char)strtoul(byte, NULL, 16);
    }
    text[n] = '\0';
}

static void hex(const char *text)
{
    for (; *text; text++)
        printf("%02x", (unsigned char)*text);
}

static void answer(const char *what, const char *text, const char *more)
{
    struct rdzv_params p;
    struct muster_error err;
    struct endpoint e;
    int64_t n = 0;
    int rc, b = 0;

    if (params_init(&p, "c10d", "", "id", 1, 1, NULL, &err) < 0)
        abort();
    if (strcmp(what, "endpoint") == 0) {
        rc = endpoint_parse(text, (int32_t)atoi(more), &e, &err);
    } else if (strcmp(what, "conf") == 0) {
        rc = conf_parse(&p, text, &err);
    } else {
        if (params_set_str(&p, "k", text, &err) < 0)
            abort();
        rc = strcmp(what, "int") == 0 ? params_int(&p, "k", 0, &n, &err)
                                      : params_bool(&p, "k", -1, &b, &err);
    }
    if (rc < 0) {
        printf("error ");
        hex(err.text);
    } else if (strcmp(what, "endpoint") == 0) {
        printf("ok ");
        hex(e.host);
        printf(" %d", e.port);
    } else if (strcmp(what, "conf") == 0) {
        printf("ok");
        for (size_t i = 0; i < p.count; i++) {
            printf(" ");
            hex(p.options[i].key);
            printf("=");
            hex(p.options[i].text);
        }
    } else {
        printf("ok %" PRId64, strcmp(what, "int") == 0 ? n : b);
    }
    printf("\n");
    params_fini(&p);
}

int main(void)
{
    char *line = NULL;
    size_t size = 0;

    while (getline(&line, &size, stdin) > 0) {
        static char empty[] = "";
        char *what = strtok(line, " \n"), *text = strtok(NULL, " \n");
        char *more = strtok(NULL, " \n");

        if (!what)
            continue;
        if (!text || strcmp(text, "-") == 0)
            text = empty;
        else
            unhex(text);
        answer(what, text, more ? more : "0");
    }
    free(line);
    return 0;
}
