/* conf.h - the configuration string of --rdzv-conf: `<key>=<value>,...`, torch's rules.
 */
#ifndef RDZV_CONF_H
#define RDZV_CONF_H

#include "rdzv/params.h"

/* Sets an option of p, as text, for each part; a repeated key takes its last value. On
 * an error some may have been set already. text may be NULL. */
int conf_parse(struct rdzv_params *p, const char *text, struct muster_error *err);

#endif
