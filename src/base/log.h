/* log.h - the one way in which all parts of muster log, core included. Who speaks gets
 * a struct log and does not know where its lines go: to stderr in torchrun's shape
 * (logs/log_writer.h), to a caller of libmuster, or into the simulator's transcript. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/log_places.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR, LOG_CRITICAL };

typedef void (*log_fn)(void *ctx, enum log_level level, enum log_place place,
                       const char *text);

struct log {
    log_fn emit; /* NULL: nobody listens */
    void *ctx;   /* borrowed */
    enum log_level least;
    enum log_level torch_least; /* the same for places that have LOG_TORCH */
};

/* Whether such a message would be printed; log may be NULL. */
bool log_wants(const struct log *log, enum log_level level, enum log_place place);

/* Logs a message, perhaps of several lines; the place says which part speaks. log may
 * be NULL. Without memory the message is cut. */
void log_line(const struct log *log, enum log_level level, enum log_place place,
              const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* Limits log lines that anybody outside the job can cause: LOG_RATE_LINES are printed
 * in LOG_RATE_MS, the rest is only counted. Zeroed to begin with. */
#define LOG_RATE_LINES 10u
#define LOG_RATE_MS    10000u
struct log_rate {
    uint64_t since_ms; /* when counting began; 0: not yet */
    unsigned lines, left_out;
};

/* Whether one more line may be printed. If lines were left out before, it first logs
 * how many: "[who]: N more connections were refused in S s". */
bool log_rate_allows(struct log_rate *r, uint64_t now_ms, const struct log *log,
                     const char *who);

#endif
