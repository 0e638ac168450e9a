"""Real training: two nodes of two workers, DDP on gloo, a checkpoint. Whoever launches it,
the losses and parameters are the same; also after a worker was killed."""
import re
from pathlib import Path

import pytest

from run_job import Job, free_port

TRAIN = Path(__file__).with_name("run_train.py")
STEPS = 6


def train(where, kinds, restarts=0, kill=""):
    where.mkdir()
    port = free_port()
    env = {"STEPS": str(STEPS), "CKPT": str(where / "ckpt"), "KILL": kill}
    jobs = [Job(where, f"node{i}", "--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-id=train",
                f"--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1", f"--max-restarts={restarts}", TRAIN,
                kind=kind, env=env)
            for i, kind in enumerate(kinds)]
    try:
        codes = [job.wait(200) for job in jobs]
        text = "".join(job.text() for job in jobs)
        assert codes == [0, 0], text[-4000:]
        losses = dict(re.findall(r"LOSS (\d+) (\S+)", text))
        assert len(losses) == STEPS, text[-4000:]
        return losses, [float(x) for x in re.search(r"PARAMETERS (.*)", text)[1].split()], text
    finally:
        for job in jobs:
            job.end()


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    losses, parameters, _ = train(tmp_path_factory.mktemp("torchrun") / "job", ["torchrun", "torchrun"])
    return losses, parameters


@pytest.mark.parametrize("kinds", [("muster", "muster"), ("muster", "torchrun"), ("torchrun", "muster")],
                         ids=["muster", "muster-hosts", "torchrun-hosts"])
def test_same_losses(reference, tmp_path, kinds):
    losses, parameters, _ = train(tmp_path / "job", kinds)
    assert (losses, parameters) == reference


def test_a_killed_worker_resumes(reference, tmp_path):
    """The same to the last digits: DDP lays out its buckets anew after its first step, so
    sums are formed in another order when a run begins in the middle."""
    losses, parameters, text = train(tmp_path / "job", ["muster", "muster"], restarts=2, kill="2@3")
    assert "exitcode: -9" in text
    assert {k: float(v) for k, v in losses.items()} == pytest.approx({k: float(v) for k, v in reference[0].items()},
                                                                     abs=1e-6)
    assert parameters == pytest.approx(reference[1], abs=1e-5)
