/* machine.h - what derive_config() asks of the machine, on the real one: its
 * devices, its files, this process's environment and random bytes. */
#ifndef LAUNCH_MACHINE_H
#define LAUNCH_MACHINE_H

#include "launch/core/derive.h"

/* Fills in *out. warn and ctx are the caller's, as in struct derive_machine. */
int machine_real(struct derive_machine *out,
                 void (*warn)(void *ctx, enum derive_warning what, const char *text),
                 void *ctx, struct muster_error *err);

/* scheduler_apply() with this machine's name and what the scheduler has to be asked
 * for. Looks at nothing but the environment if no scheduler is there. */
struct slurm_texts;
int machine_scheduler(struct options *o, struct slurm_texts *texts,
                      struct muster_error *err);

#endif
