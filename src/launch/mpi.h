/* mpi.h - whether a program will look for MPI's ranks, which only mpirun or srun give
 * it. */
#ifndef LAUNCH_MPI_H
#define LAUNCH_MPI_H

#include "base/base.h"

/* Whether the program is linked to an MPI library, and to which. A program without a
 * slash in it is looked for in search (PATH; may be NULL). */
bool mpi_library(const char *program, const char *search, char *name, size_t size);

#endif
