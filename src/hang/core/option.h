/* option.h - --hang=TIME[:report|restart|stop]. Pure. */
#ifndef HANG_CORE_OPTION_H
#define HANG_CORE_OPTION_H

#include "base/buf.h"
#include "muster/error.h"

enum hang_action { HANG_REPORT, HANG_RESTART, HANG_STOP };

const char *hang_action_name(enum hang_action action); /* "report" */

/* TIME as duration_parse reads it. MUSTER_EINVAL with what is wrong. */
int hang_option_parse(const char *text, uint64_t *time_ms, enum hang_action *action,
                      struct muster_error *err);

#endif
