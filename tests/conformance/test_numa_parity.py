"""--numa-binding: our choice of CPUs against torch's, on machines made up at random."""
from __future__ import annotations

import random
import subprocess
from pathlib import Path
from unittest import mock

import pytest
from torch.numa import binding

ROOT = Path(__file__).resolve().parent.parent.parent
MODES = ["none", "node", "socket", "exclusive", "core-complex"]


class Machine:
    """Packages of nodes of caches of cores of threads, numbered in one of two ways."""

    def __init__(self, rng: random.Random):
        threads = rng.choice([1, 2])
        shape = [(p, n, c) for p in range(rng.randint(1, 2))
                 for n in range(rng.randint(1, 2)) for c in range(rng.randint(1, 3))]
        cores = [(p, n, c, k) for p, n, c in shape for k in range(rng.randint(1, 4))]
        nodes = sorted({(p, n) for p, n, _, _ in cores})
        self.cpus = {}  # number -> (node, package, core key, cache key)
        number = {}
        spread = rng.random() < 0.5  # second threads behind all first ones, or beside
        for i, core in enumerate(cores):
            for t in range(threads):
                number[core, t] = i + t * len(cores) if spread else i * threads + t
        for core in cores:
            for t in range(threads):
                self.cpus[number[core, t]] = (
                    nodes.index(core[:2]), core[0],
                    min(number[core, s] for s in range(threads)),
                    min(number[k, s] for k in cores if k[:3] == core[:3]
                        for s in range(threads)))
        self.nodes = len(nodes)
        self.allowed = {c for c in self.cpus if rng.random() < 0.85}
        for node in range(self.nodes):  # torch dies of a node without any
            self.allowed.add(next(c for c, v in self.cpus.items() if v[0] == node))
        self.gpus = [rng.randrange(self.nodes) for _ in range(rng.randint(1, 6))]

    def ask_torch(self, mode: str, gpu: int):
        cpus = self.cpus
        patches = {
            "_get_gpu_count": lambda: len(self.gpus),
            "_get_numa_node_index_for_gpu_index": lambda *, gpu_index: self.gpus[gpu_index],
            "_get_cpu_indices_for_numa_node_MAYBE_NOT_ALLOWED":
                lambda *, numa_node_index: {c for c in cpus if cpus[c][0] == numa_node_index},
            "_get_allowed_cpu_indices_for_current_thread": lambda: self.allowed,
            "_get_socket_index_for_cpu": lambda *, cpu_index: cpus[cpu_index][1],
            "_get_systemwide_numa_node_indices": lambda: set(range(self.nodes)),
            "_get_logical_cpu_indices_sharing_same_physical_core_as":
                lambda *, logical_cpu_index: {c for c in cpus if cpus[c][2] == cpus[logical_cpu_index][2]},
            "_get_logical_cpus_sharing_same_max_level_cache_as":
                lambda *, logical_cpu_index: {c for c in cpus if cpus[c][3] == cpus[logical_cpu_index][3]},
        }
        with mock.patch.multiple(binding, **patches):
            try:
                return sorted(binding._get_logical_cpus_to_bind_to(
                    gpu_index=gpu, numa_options=binding.NumaOptions(binding.AffinityMode(mode))))
            except RuntimeError:
                return "error"

    def question(self, mode: str, gpu: int) -> str:
        words = [MODES.index(mode), gpu, len(self.gpus), *self.gpus, len(self.cpus)]
        for c in sorted(self.cpus):
            words += [*self.cpus[c], int(c in self.allowed)]
        return " ".join(map(str, words)) + "\n"


@pytest.mark.parametrize("mode", MODES[1:])
def test_choice(mode):
    rng = random.Random(mode)
    asked = [(Machine(rng), rng) for _ in range(300)]
    questions = [(m, r.randrange(len(m.gpus))) for m, r in asked]
    done = subprocess.run([ROOT / "build/tests/interop/interop_numa_choice"], text=True,
                          input="".join(m.question(mode, g) for m, g in questions),
                          capture_output=True, check=True)
    answers = done.stdout.splitlines()
    assert len(answers) == len(questions)
    for (machine, gpu), answer in zip(questions, answers):
        ours = "error" if answer == "error" else [int(c) for c in answer.split()]
        assert ours == machine.ask_torch(mode, gpu), machine.question(mode, gpu)
