/* rdzv.h - what the files of muster-bench rdzv share: rdzv.c (rounds, the
 * result), rdzv_options.c, rdzv_crew.c (a process of nodes), rdzv_store.c (the store
 * they meet at) and rdzv_torch.c (torch's nodes, for comparison). */
#ifndef BENCH_RDZV_H
#define BENCH_RDZV_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define RDZV_MAX_PROCESSES 64

struct rdzv_options {
    long nodes, more, processes, rounds, beat_s;
    bool lose, wait, torch;
    char host[256];
    uint16_t port;
    const char *muster, *python;
};

/* What a process of nodes tells the parent. */
struct rdzv_report {
    enum { REPORT_RANK, REPORT_LOST, REPORT_FAILED } kind;
    int32_t round;
    int64_t rank, world;
    double at_s;
};

double rdzv_now_s(void);

/* False: wrong options. */
bool rdzv_parse(int argc, char **argv, struct rdzv_options *o);

/* Never returns: nodes first .. first + count - 1, by orders from one pipe ('j' join a
 * round, 'k' drop the first node, 'q' end), reports to the other. */
void rdzv_crew_run(const struct rdzv_options *o, long first, long count, int orders,
                   int reports) __attribute__((noreturn));

/* A `muster store`; sets host and port. Negative: it could not be started. */
pid_t rdzv_store_start(struct rdzv_options *o);
double rdzv_store_cpu_s(pid_t pid);
long rdzv_store_peak_kb(pid_t pid);

/* What the store says it has done; false if it is none of ours. */
struct rdzv_stats {
    uint64_t requests, answers, bytes_in, bytes_out;
};
bool rdzv_store_stats(const struct rdzv_options *o, struct rdzv_stats *out);

/* Seconds from the start signal until the last of as many handlers of torch, in a few
 * processes of Python on torch's own store, has its rank; negative: it did not work. */
double rdzv_torch_round(const struct rdzv_options *o);

#endif
