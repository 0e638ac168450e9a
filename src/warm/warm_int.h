/* warm_int.h - the program of the warm interpreter, made at build time (embed.py). */
#ifndef WARM_WARM_INT_H
#define WARM_WARM_INT_H

#include <stddef.h>

extern const unsigned char warm_program[];
extern const size_t warm_program_size;

#endif
