"""Real gloo groups through restarts and changes of membership. With torchrun's own agents
most of the former hang: the keys of the last attempt are still in the workers' store."""
import os
import re
from pathlib import Path

from run_job import Job, free_port

GLOO = Path(__file__).with_name("run_gloo.py")
RESTARTS = int(os.environ.get("MUSTER_TEST_RESTARTS", "3"))
WORKERS = int(os.environ.get("MUSTER_TEST_WORKERS", "3"))


def test_restarts_in_a_row(tmp_path):
    with Job(tmp_path, "job", "--standalone", f"--nproc-per-node={WORKERS}", f"--max-restarts={RESTARTS}", GLOO,
             env={"RESTARTS": str(RESTARTS)}) as job:
        assert job.wait(60 + 40 * RESTARTS) == 0, job.text()[-3000:]
        groups = re.findall(r"GROUP attempt (\d+) of (\d+)", job.text())
        assert groups == [(str(i), str(WORKERS)) for i in range(RESTARTS + 1)]


def node(where, name, port, stop):
    return Job(where, name, "--nnodes=1:3", "--rdzv-backend=c10d", "--rdzv-id=elastic",
               f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-conf=last_call_timeout=1", "--local-addr=127.0.0.1",
               "--max-restarts=10", GLOO, env={"STOP": str(stop)})


def test_grow_and_shrink(tmp_path):
    port, stop = free_port(), tmp_path / "stop"
    sizes = lambda jobs: re.findall(r"GROUP attempt \d+ of (\d+)", "".join(j.text() for j in jobs))
    jobs = []
    try:
        for count in (1, 2, 3):
            jobs.append(node(tmp_path, f"n{count}", port, stop))
            jobs[0].until(lambda _, c=count: str(c) in sizes(jobs))
        jobs[2].process.kill()  # a node is lost
        jobs[0].until(lambda _: sizes(jobs).count("2") >= 2)
        jobs[1].process.terminate()  # and one says goodbye
        assert jobs[1].wait() == 1
        jobs[0].until(lambda _: sizes(jobs).count("1") >= 2)
        stop.touch()
        assert jobs[0].wait() == 0, jobs[0].text()[-3000:]
    finally:
        for job in jobs:
            job.end()
