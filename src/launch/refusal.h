/* refusal.h - why the kernel would not execute a program, in words that help. */
#ifndef LAUNCH_REFUSAL_H
#define LAUNCH_REFUSAL_H

#include "base/buf.h"

/* Appends a sentence on why executing the program gave this errno, without a newline:
 * "its first line asks for the interpreter '/usr/bin/pyhton', which does not exist on
 * this node". Appends nothing if the file tells no more than errno does. A program
 * without a slash in it is looked for in search (PATH; may be NULL). */
void refusal_explain(struct buf *out, const char *program, const char *search,
                     int errnum);

/* Writes the path where a shell would find the program; false if there is none. */
bool refusal_find(const char *program, const char *search, char *path, size_t size);

#endif
