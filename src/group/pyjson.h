/* pyjson.h - JSON as Python's json.dumps writes it: ", " and ": " between, ASCII only.
 * Tools compare such texts byte for byte. Pure. */
#ifndef GROUP_PYJSON_H
#define GROUP_PYJSON_H

#include <jansson.h>

#include "base/buf.h"

/* A string with its quotes. Bytes that are no UTF-8 become lone surrogates, as in
 * Python's own texts from the system. */
int json_text(struct buf *out, const char *text);

/* A whole value. 0, MUSTER_ENOMEM or MUSTER_EFULL. */
int json_python(struct buf *out, const json_t *value);

#endif
