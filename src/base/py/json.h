/* json.h - writes JSON as Python's json.dumps does (", " and ": " between items, ASCII
 * only), since tools compare such texts byte for byte; and reads what Python wrote.
 * Pure. */
#ifndef BASE_PY_JSON_H
#define BASE_PY_JSON_H

#include <jansson.h>

#include "base/buf.h"
#include "muster/error.h"

/* Appends a string with its quotes. Bytes that are not UTF-8 become lone surrogates, as
 * in strings that Python gets from the system. */
int json_text(struct buf *out, const char *text);

/* Appends a whole value. 0, MUSTER_ENOMEM or MUSTER_EFULL. */
int json_python(struct buf *out, const json_t *value);

/* Appends JSON that Python may have written in a form that jansson takes: escapes of
 * NUL and of lone surrogates, which no C string or UTF-8 can hold, become the text of
 * that escape ("\\udce9"). The rest stays. 0, MUSTER_ENOMEM or MUSTER_EFULL. */
int json_tame(struct buf *out, struct span text);

/* Reads such JSON; the caller owns *out. 0, MUSTER_ESTATE with the reason, or
 * MUSTER_ENOMEM. */
int json_from_python(json_t **out, struct span text, struct muster_error *err);

#endif
