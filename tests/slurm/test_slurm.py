"""`srun muster run`, on a real Slurm with three nodes."""
from __future__ import annotations

import json
from pathlib import Path

import pytest
from cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]
MUSTER = str(ROOT / "build/muster")


@pytest.fixture(scope="module")
def slurm():
    with Cluster(3) as cluster:
        yield cluster


def test_several_tasks_on_a_node_are_refused(slurm) -> None:
    srun = slurm.srun(["-N1", "-n2", MUSTER, "run", "--no-python", "true"])
    assert srun.wait(60) != 0
    assert "srun started 2 tasks on 1 nodes" in srun.output()
    assert "--ntasks-per-node=1" in srun.output()


def test_another_number_of_nodes_is_refused(slurm) -> None:
    srun = slurm.srun(["-N3", "--ntasks-per-node=1", MUSTER, "run", "--nnodes=2",
                       "--no-python", "true"])
    assert srun.wait(60) != 0
    assert "--nnodes=2, but this Slurm job step has 3 nodes" in srun.output()
