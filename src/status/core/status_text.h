/* status_text.h - a job's status (docs/status.schema.json) as text for people, as
 * `muster status` prints it. It is made from the JSON that an agent sent; whatever is
 * missing or malformed there is left out. Pure. */
#ifndef STATUS_CORE_STATUS_TEXT_H
#define STATUS_CORE_STATUS_TEXT_H

#include <jansson.h>

#include "base/buf.h"

struct status_style {
    size_t columns; /* of the terminal; 60 are enough */
    bool color;
    bool workers; /* also print a line for each rank */
};

/* Errors stay in the buffer. */
void status_text(struct buf *out, const json_t *status, const struct status_style *s);

/* Parts of it, which `muster top` shows, too. Each is one line, without a newline. The
 * headline names the job or the store, a job by at most so many characters of its id; a
 * restart is an entry of the history. */
void status_headline(struct buf *out, const json_t *status, size_t id_max);
void status_restart(struct buf *out, const json_t *status, const json_t *entry);
bool status_is_restart(const json_t *entry);
void status_ranks(struct buf *out, const json_t *node); /* "8-15" */
void status_remark(struct buf *out, const json_t *status, const json_t *node,
                   double median);

/* The CPU use of a rank in percent, as the median over all running nodes; -1 if there
 * are too few of them to compare. */
double status_median(const json_t *status);

struct span json_span(const json_t *object, const char *key); /* empty if no text */
double json_num(const json_t *object, const char *key, double otherwise);

/* The same for a count: 0 if it is missing, negative or too large. */
uint64_t json_count(const json_t *object, const char *key);

#endif
