/* text.h - Python's str.strip, int() and the \w of its regular expressions, as far as
 * options and endpoints need them: torch parses those with them. */
#ifndef BASE_PY_TEXT_H
#define BASE_PY_TEXT_H

#include "base/base.h"

/* s without white space at either end: Unicode's, as in str.strip. */
struct span py_strip(struct span s);

/* True if s has nothing but \w (letters, digits, _) and the characters of more. A byte
 * that is not UTF-8 is not a letter. Beyond ASCII every character counts as a letter
 * unless it is a space, or punctuation from one of the common blocks. */
bool py_words(struct span s, const char *more);

/* As int(text): takes white space around the number, a sign, and _ between digits.
 * False if the text is not a number, or one that does not fit. */
bool py_int(struct span s, int64_t *out);

#endif
