/* derive.h - makes the configuration of a launch out of the options: torchrun's checks
 * in torchrun's order and wording, and the values that it derives. Pure: what depends
 * on the machine comes in through struct derive_machine.
 *
 * Error texts: the first line is torch's message; lines after it are the remedy. */
#ifndef LAUNCH_CORE_DERIVE_H
#define LAUNCH_CORE_DERIVE_H

#include "launch/core/config.h"
#include "launch/core/options.h"

/* What a warning is about. The place that the log line names depends on it. */
enum derive_warning {
    DERIVE_WARN_OMP,
    DERIVE_WARN_MASTER_ADDR,
    DERIVE_WARN_NODE_RANK,
    DERIVE_WARN_RUN_ID,
    DERIVE_WARN_CONF,     /* ours: a key of --rdzv-conf that looks misspelled */
    DERIVE_WARN_ENDPOINT, /* ours: the nodes are to meet on this machine */
};

struct derive_machine {
    /* How many workers a word (cpu, gpu, xpu, auto) stands for, or an error. */
    int (*count_devices)(void *ctx, const char *word, int64_t *n,
                         struct muster_error *err);
    bool (*is_file)(void *ctx, const char *path); /* exists and is not a directory */
    void (*warn)(void *ctx, enum derive_warning what, const char *text);
    void *ctx;
    char *const *envp;
    uint8_t random[16]; /* for the run id, if one must be made up */
    /* These three may be NULL: then what they ask about is not checked. */
    bool (*is_dir)(void *ctx, const char *path);
    /* How many processes there can be at most, and what sets that limit; 0: no limit */
    int64_t (*most_processes)(void *ctx, const char **limit);
    /* The text of a file, at most so many bytes, for the caller to free; NULL: errno */
    char *(*read_text)(void *ctx, const char *path, size_t most);
};

/* Fills in *c (to be freed with launch_config_fini). c->python is set only if
 * PYTHON_EXEC is; otherwise the caller finds an interpreter. */
int derive_config(struct launch_config *c, const struct options *o, bool launch,
                  const struct derive_machine *machine, struct muster_error *err);

/* --hang=TIME[:report|restart|stop], TIME as duration_parse reads it. MUSTER_EINVAL
 * with what is wrong. */
int hang_option_parse(const char *text, uint64_t *time_ms, enum hang_action *action,
                      struct muster_error *err);

/* 128 bits as a version 4 UUID, in its usual form or as a decimal number. */
void derive_uuid(const uint8_t random[16], char text[37]);
void derive_uuid_decimal(const uint8_t random[16], char text[40]);

#endif
