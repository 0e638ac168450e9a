/* mpi_ring.c - a token goes around all ranks, and each adds one.
 *
 *     mpicc.mpich -o mpi_ring mpi_ring.c
 *     muster run --nproc-per-node=4 --for=mpi --no-python ./mpi_ring
 *
 * With an argument, the last rank calls MPI_Abort with that code in the first attempt.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    int rank, size, token = 1;
    const char *restarts = getenv("TORCHELASTIC_RESTART_COUNT");

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    printf("hello from rank %d of %d\n", rank, size);
    fflush(stdout);
    if (argc > 1 && rank == size - 1 && (!restarts || strcmp(restarts, "0") == 0))
        MPI_Abort(MPI_COMM_WORLD, atoi(argv[1]));
    if (rank > 0) {
        MPI_Recv(&token, 1, MPI_INT, rank - 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        token++;
    }
    if (size > 1)
        MPI_Send(&token, 1, MPI_INT, (rank + 1) % size, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        if (size > 1)
            MPI_Recv(&token, 1, MPI_INT, size - 1, 0, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        printf("the ring has brought %d\n", token);
    }
    MPI_Finalize();
    return 0;
}
