"""The host of the rendezvous, here a `muster store`, dies under a running job: agents notice
at once; one that comes back in time is taken up again, one that does not ends the job with
a message. What it held besides (the store's keys) is gone; etcd is for those who need more."""
from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from patience import clock

ROOT = Path(__file__).resolve().parent.parent.parent
MUSTER = ROOT / "build/muster"
WORKER = ('echo up >> "$0/up.$GROUP_RANK"; '
          'while [ ! -e "$0/stop" ]; do sleep 0.05; done')


class Job:
    def __init__(self, directory: Path) -> None:
        self.dir, self.port = directory, "0"
        self.start_store()
        self.agents = []

    def start_store(self) -> None:
        port_file = self.dir / "port"
        port_file.unlink(missing_ok=True)
        self.store = subprocess.Popen(
            [MUSTER, "store", "--bind", "127.0.0.1", "--port", self.port, "--port-file",
             port_file], stdout=subprocess.DEVNULL, stderr=(self.dir / "store").open("a"))
        self.until(lambda: port_file.exists() and port_file.read_text().strip())
        self.port = port_file.read_text().strip()

    def kill_store(self) -> None:
        self.store.kill()
        self.store.wait()

    def start_agents(self, conf: str) -> None:
        for n in range(2):
            self.agents.append(subprocess.Popen(
                [MUSTER, "run", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=host",
                 f"--rdzv-endpoint=127.0.0.1:{self.port}", f"--rdzv-conf=is_host=0,{conf}",
                 f"--local-addr=node{n}", "--log-dir=/dev/null", "--no-python", "sh", "-c",
                 WORKER, self.dir], env=dict(os.environ, OMP_NUM_THREADS="1"),
                stderr=(self.dir / f"agent{n}").open("w")))

    def text(self, name: str) -> str:
        path = self.dir / name
        return path.read_text() if path.exists() else ""

    def until(self, done, patience: float = 90) -> None:
        by = clock() + patience
        while not done():
            assert clock() < by, {
                p.name: p.read_text() for p in self.dir.iterdir() if not p.name.startswith("port")}
            time.sleep(0.02)

    def close(self) -> None:
        for proc in (*self.agents, self.store):
            if proc.poll() is None:
                proc.terminate()
            proc.wait()


@pytest.fixture
def job(tmp_path):
    j = Job(tmp_path)
    yield j
    j.close()


def test_a_host_that_comes_back_in_time(job):
    job.start_agents("keep_alive_interval=20")  # so it has a minute
    job.until(lambda: job.text("up.0") and job.text("up.1"))
    job.kill_store()
    for n in range(2):
        job.until(lambda n=n: "the host of the rendezvous 'host' cannot be reached" in job.text(f"agent{n}"))
    job.start_store()
    job.until(lambda: "2 of 2 nodes are here" in job.text("store"))
    (job.dir / "stop").touch()
    for agent in job.agents:
        assert agent.wait(90) == 0, job.text("agent0") + job.text("agent1")
    assert job.text("up.0") == job.text("up.1") == "up\n"  # nobody was started again


def test_a_host_that_stays_away_ends_the_job_with_a_message(job):
    job.start_agents("keep_alive_interval=1,keep_alive_max_attempt=3")
    job.until(lambda: job.text("up.0") and job.text("up.1"))
    job.kill_store()
    for n, agent in enumerate(job.agents):
        assert agent.wait(90) == 1
        text = job.text(f"agent{n}")
        assert "the host of the rendezvous 'host' cannot be reached" in text
        assert "has been unreachable for as long as a node may be silent" in text


def test_a_join_waits_for_a_host_that_starts_late(job):
    job.kill_store()
    job.start_agents("join_timeout=60")
    time.sleep(1)  # they find nobody
    job.start_store()
    job.until(lambda: job.text("up.0") and job.text("up.1"))
    (job.dir / "stop").touch()
    for agent in job.agents:
        assert agent.wait(90) == 0
