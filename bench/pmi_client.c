/* pmi_client.c - a client that speaks PMI-1 alone, as an MPI library does while it
 * starts: init, maxes, kvsname, put, barrier, get of the next rank's, finalize. Prints
 * the time (CLOCK_MONOTONIC) at which it had all of that. With -DMPI it is MPI_Init
 * instead. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef MPI
#include <mpi.h>

static void start(int *argc, char ***argv)
{
    MPI_Init(argc, argv);
}

static void end(void)
{
    MPI_Finalize();
}
#else
static int fd;

static const char *ask(const char *text)
{
    static char answer[4096];
    size_t n = 0;

    if (write(fd, text, strlen(text)) < 0)
        exit(2);
    do {
        const ssize_t got = read(fd, answer + n, sizeof answer - 1 - n);

        if (got <= 0)
            exit(3);
        n += (size_t)got;
    } while (answer[n - 1] != '\n');
    answer[n] = '\0';
    return answer;
}

static void start(int *argc, char ***argv)
{
    const int rank = atoi(getenv("PMI_RANK")), size = atoi(getenv("PMI_SIZE"));
    char name[256] = "", line[1024], want[64];

    (void)argc;
    (void)argv;
    fd = atoi(getenv("PMI_FD"));
    ask("cmd=init pmi_version=1 pmi_subversion=1\n");
    ask("cmd=get_maxes\n");
    if (sscanf(strstr(ask("cmd=get_my_kvsname\n"), "kvsname="), "kvsname=%255s",
               name) != 1)
        exit(4);
    snprintf(line, sizeof line, "cmd=put kvsname=%s key=P%d value=card%d\n", name, rank,
             rank);
    ask(line);
    ask("cmd=barrier_in\n");
    snprintf(line, sizeof line, "cmd=get kvsname=%s key=P%d\n", name,
             (rank + 1) % size);
    snprintf(want, sizeof want, "value=card%d", (rank + 1) % size);
    if (!strstr(ask(line), want))
        exit(5);
}

static void end(void)
{
    ask("cmd=finalize\n");
}
#endif

int main(int argc, char **argv)
{
    struct timespec ts;

    start(&argc, &argv);
    clock_gettime(CLOCK_MONOTONIC, &ts);
    printf("%lld.%09ld\n", (long long)ts.tv_sec, ts.tv_nsec);
    fflush(stdout);
    end();
    return 0;
}
