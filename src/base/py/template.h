/* template.h - Python's string.Template.safe_substitute, for ${local_rank} and other
 * names in arguments and prefixes. Pure. */
#ifndef BASE_PY_TEMPLATE_H
#define BASE_PY_TEMPLATE_H

#include "base/base.h"
#include "base/buf.h"

struct template_value {
    const char *name, *value; /* borrowed */
};

/* Appends text to out with $name and ${name} replaced and $$ turned into $. Unknown
 * names and a lone $ stay as they are. 0, MUSTER_ENOMEM or MUSTER_EFULL. */
int template_expand(struct buf *out, const char *text,
                    const struct template_value *values, size_t count);

#endif
