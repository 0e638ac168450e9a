/* datetime.h - converts between the ten bytes of Python's pickled datetime and
 * microseconds since 1970. */
#ifndef BASE_PY_DATETIME_H
#define BASE_PY_DATETIME_H

#include "base/base.h"

#define PYTIME_BYTES 10u

/* The first and last moment that Python's datetime can hold. */
#define PYTIME_MIN_US (-62135596800000000ll)
#define PYTIME_MAX_US 253402300799999999ll

/* False if the bytes are not a date and time of the years 1 to 9999, or fold is set. */
bool py_datetime_read(const uint8_t bytes[PYTIME_BYTES], int64_t *us);

/* Times outside of Python's range become its first or last moment. */
void py_datetime_write(uint8_t bytes[PYTIME_BYTES], int64_t us);

#endif
