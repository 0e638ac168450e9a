/* text.h - what Python's str.strip, int() and re's \w make of a text, as far as
 * options and endpoints go. torch's parsers are written in those terms. */
#ifndef BASE_PY_TEXT_H
#define BASE_PY_TEXT_H

#include "base/base.h"

/* Without white space at either end (Unicode's, as str.strip has it). */
struct span py_strip(struct span s);

/* True if all of s is made of \w (letters, digits, _) and of the characters of more. A
 * byte that is not UTF-8 is not a letter. Beyond ASCII every character counts as a
 * letter that is neither space nor punctuation of the blocks in common use. */
bool py_words(struct span s, const char *more);

/* As int(text): white space around, a sign, _ between digits. False if the text is not
 * a number, or one that does not fit. */
bool py_int(struct span s, int64_t *out);

#endif
