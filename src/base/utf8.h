/* utf8.h - is it text that every peer can read? */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include "base/base.h"

/* Well-formed and shortest, no surrogates: so that byte order is Python's order, and
 * JSON can hold it. */
bool utf8_valid(struct span s);

#endif
