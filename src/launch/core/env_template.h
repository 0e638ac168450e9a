/* env_template.h - what --env, and with --for the program's arguments, may hold:
 * ${rank}, ${local_rank} and the other names of a worker's place. Pure.
 *
 * Only a name in braces is one of ours: $HOME, ${a.b} and ${a:b} are left alone, and
 * $${ stands for ${. A name in braces that is not known is refused when the command
 * line is read, so that the workers never meet one. */
#ifndef LAUNCH_CORE_ENV_TEMPLATE_H
#define LAUNCH_CORE_ENV_TEMPLATE_H

#include "launch/core/worker_env.h"

#define ENV_FILE_MOST (1u << 18) /* bytes */

/* 0, or MUSTER_EINVAL with the nearest name; what: where the text stands, as in
 * "--env A=${x}". */
int env_template_check(const char *what, const char *text, struct muster_error *err);

/* Appends the text with its names replaced. 0 or MUSTER_ENOMEM. */
int env_template_expand(struct buf *out, const char *text,
                        const struct launch_config *c, const struct worker_place *p);

/* Adds NAME=TEMPLATE or NAME to the list, once it is found to be one. A name that the
 * list has already is replaced. */
int env_template_add(struct text_list *l, const char *where, struct span text,
                     struct muster_error *err);

/* The same for each line of a file; empty lines and those that begin with # are left
 * out. */
int env_template_add_file(struct text_list *l, const char *path, struct span text,
                          struct muster_error *err);

/* Puts what the list says into a worker's environment. NAME alone stays as it is. */
int env_template_apply(struct text_list *env, const struct launch_config *c,
                       const struct worker_place *p);

#endif
