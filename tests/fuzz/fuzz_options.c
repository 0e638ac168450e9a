/* fuzz_options.c - command lines and environments, from words to the workers' argv and
 * environment. Words end with a NUL; those of the form NAME=... with a capital first
 * are variables. */
#include <assert.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "launch/core/derive.h"
#include "launch/core/scheduler.h"
#include "launch/core/worker_env.h"
#include "logs/core/prefix_lines.h"

#define MOST 64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int count_devices(void *ctx, const char *word, int64_t *n,
                         struct muster_error *err)
{
    (void)ctx;
    *n = 2;
    return word[0] == 'g' ? err_set(err, MUSTER_EINVAL, "none") : 0;
}

static bool is_file(void *ctx, const char *path)
{
    (void)ctx;
    return path[0] == 'f';
}

static void warn(void *ctx, enum derive_warning what, const char *text)
{
    (void)what;
    (void)ctx;
    assert(text[0]);
}

static char *read_text(void *ctx, const char *path, size_t most)
{
    const struct span *file = ctx;

    (void)path;
    return mem_strndup((const char *)file->p, MIN_OF(file->n, most));
}

static void check_worker(const struct launch_config *c, char *const *envp)
{
    char *own = (char[]){ "10.0.0.1 1 80" };
    const struct text_list nodes = { &own, 1, 0 };
    const struct worker_place p = { .world_size = 1,
                                    .nodes = &nodes,
                                    .hostname = "n",
                                    .group_world_size = 1,
                                    .role_world_size = 1,
                                    .master_addr = "h",
                                    .error_file = "e" };
    struct text_list argv, env;
    struct buf prefix;

    assert(worker_argv(&argv, c, &p, NULL) == 0 && argv.count > 0);
    text_list_fini(&argv);
    if (worker_env(&env, c, &p, envp, NULL) == 0) {
        assert(env_get(env.items, "RANK"));
        text_list_fini(&env);
    }
    buf_init(&prefix, SIZE_MAX);
    assert(line_prefix(&prefix, c->prefix_template, c->role, 0, 0, "host") == 0);
    buf_fini(&prefix);
    assert(worker_report_name(c) && worker_binary(c));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = mem_calloc(1, size + 1), *argv[MOST + 1], *envp[MOST + 1];
    struct span file = span_of(data, size); /* what every --env-file holds */
    struct options_input in = { argv, 0, envp, size % 2 == 1 };
    struct derive_machine ports = { .count_devices = count_devices,
                                    .is_file = is_file,
                                    .warn = warn,
                                    .read_text = read_text,
                                    .ctx = &file,
                                    .envp = envp,
                                    .random = { 1 } };

    size_t n_env = 0;
    struct options o;
    struct launch_config c;
    struct muster_error err = { 0 };

    assert(text);
    if (size)
        memcpy(text, data, size);
    for (size_t at = 0; at < size; at += strlen(text + at) + 1) {
        char *word = text + at;

        if (*word >= 'A' && *word <= 'Z' && strchr(word, '=') && n_env < MOST)
            envp[n_env++] = word;
        else if (in.argc < MOST)
            argv[in.argc++] = word;
    }
    envp[n_env] = NULL;
    argv[in.argc] = NULL;
    if (options_parse(&o, &in, &err) == OPTIONS_FINE && !o.help) {
        assert(o.script);
        struct scheduler_input around = { envp, "train-1.svc", text };
        struct slurm_texts texts;

        (void)scheduler_apply(&o, &around, &texts, &err);
        if (derive_config(&c, &o, in.launch, &ports, &err) == 0) {
            if (c.entry != ENTRY_EXEC && !c.python)
                assert(text_set(&c.python, "py") == 0);
            check_worker(&c, envp);
            launch_config_fini(&c);
        } else {
            assert(err.text[0]);
        }
    }
    mem_free(text);
    return 0;
}
