"""A sum over all processes with JAX. Started by: muster run --for=jax jax_sum.py"""
import os
import sys

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize()
rank, size = jax.process_index(), jax.process_count()
everybody = multihost_utils.process_allgather(jnp.array([float(rank + 1)]))
print(f"process {rank} of {size} has the sum {float(everybody.sum()):g}", flush=True)
if "--fail-once" in sys.argv:  # to see a restart; sys.exit() would wait for the others in jax's shutdown
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and rank == size - 1:
        os._exit(3)
    multihost_utils.sync_global_devices("together")
