/* put.h - writes texts of any origin safely: into JSON, into HTML, to a terminal and as
 * the label of a metric. Bytes that are not UTF-8 become U+FFFD; control characters,
 * and those that change the direction of writing, are replaced or escaped. Errors stay
 * in the buffer, see buf_error(). Pure. */
#ifndef STATUS_CORE_PUT_H
#define STATUS_CORE_PUT_H

#include "base/buf.h"

void put_json(struct buf *out, struct span text);  /* with its quotes; safe in HTML */
void put_html(struct buf *out, struct span text);  /* between tags and in attributes */
void put_plain(struct buf *out, struct span text); /* for a terminal */
void put_label(struct buf *out, struct span text); /* inside a label's quotes */

void put_str(struct buf *out, const char *text); /* a text of our own, as it is */
void put_int(struct buf *out, int64_t n);
void put_seconds(struct buf *out, int64_t us); /* "1763294.000123" */

/* Writes as much of the text as fits into columns, with "..." if it was cut. */
void put_plain_cut(struct buf *out, struct span text, size_t columns);
/* How many columns put_plain would take, if each character takes one. */
size_t plain_width(struct span text);

/* "2 h 14 min", "12 s", "0.4 s" */
void put_duration(struct buf *out, int64_t us);
/* "41.2 GiB" */
void put_bytes(struct buf *out, uint64_t bytes);
/* "1,204" */
void put_grouped(struct buf *out, uint64_t n);

#endif
