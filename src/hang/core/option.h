/* option.h - --hang=TIME[:report|restart|stop]. Pure. */
#ifndef HANG_CORE_OPTION_H
#define HANG_CORE_OPTION_H

#include "base/buf.h"
#include "muster/error.h"

enum hang_action { HANG_REPORT, HANG_RESTART, HANG_STOP };

const char *hang_action_name(enum hang_action action); /* "report" */

/* TIME is a number with s, m, h or d behind it, several of them in a row (1h30m), or
 * seconds alone. MUSTER_EINVAL with what is wrong. */
int hang_option_parse(const char *text, uint64_t *time_ms, enum hang_action *action,
                      struct muster_error *err);

/* A TIME as above and nothing else; false, and *ms as it was: it is none. */
bool hang_time_parse(const char *text, uint64_t *ms);

/* "10 min 2 s", "45 s", "1 h 30 min", for people. */
int hang_time_print(struct buf *out, uint64_t ms);

#endif
