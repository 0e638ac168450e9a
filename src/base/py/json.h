/* json.h - JSON as Python's json.dumps writes it: ", " and ": " between, ASCII only.
 * Tools compare such texts byte for byte. And how to read what it wrote. Pure. */
#ifndef BASE_PY_JSON_H
#define BASE_PY_JSON_H

#include <jansson.h>

#include "base/buf.h"
#include "muster/error.h"

/* A string with its quotes. Bytes that are not UTF-8 become lone surrogates, as in
 * Python's own texts from the system. */
int json_text(struct buf *out, const char *text);

/* A whole value. 0, MUSTER_ENOMEM or MUSTER_EFULL. */
int json_python(struct buf *out, const json_t *value);

/* Appends JSON that Python may have written so that jansson takes it: escapes of NUL
 * and of lone surrogates, which no C string or UTF-8 can hold, become the text of that
 * escape ("\\udce9"). All else stays. 0, MUSTER_ENOMEM or MUSTER_EFULL. */
int json_tame(struct buf *out, struct span text);

/* Reads such JSON. *out is the caller's. MUSTER_ESTATE with the reason, MUSTER_ENOMEM.
 */
int json_from_python(json_t **out, struct span text, struct muster_error *err);

#endif
