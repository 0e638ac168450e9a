/* bench.h - the parts of muster-bench: each prints JSON as its last line. */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

/* argv[0] is the part's name. Returns the exit code. */
int bench_rdzv(int argc, char **argv);
int bench_load(int argc, char **argv);
int bench_bare(int argc, char **argv);
int bench_echo(int argc, char **argv);
int bench_echo_uring(int argc, char **argv);
int bench_crowd(int argc, char **argv);
int bench_lines(int argc, char **argv);
int bench_lines_check(int argc, char **argv);
int bench_watch(int argc, char **argv);

#endif
