"""Rounds without idle waiting: with a last call of an hour a job goes on at once after the loss of a worker and of a node,
on the coordinator and on etcd-v3. `last_call=always` waits, as torch does."""
from __future__ import annotations

import os
import re
import signal
import time
from contextlib import contextmanager

import pytest
from etcd_server import Etcd
from run_job import Job, free_port

WORKER = """
import os, time
print("UP", os.environ["WORLD_SIZE"], os.getpid(), flush=True)
time.sleep(1000)
"""


@contextmanager
def place(backend, where):
    if backend == "etcd-v3":
        with Etcd(where, v2=False) as etcd:
            yield etcd.endpoint
    else:
        yield f"127.0.0.1:{free_port()}"


def node(where, number, backend, endpoint, more=""):
    host = f",is_host={int(number == 0)}" if backend == "c10d" else ""
    return Job(where, f"node{number}", "--nnodes=1:2", "--max-restarts=9", f"--rdzv-backend={backend}", "--rdzv-id=call",
               f"--rdzv-endpoint={endpoint}", f"--rdzv-conf=last_call_timeout=3600{host}{more}",
               f"--local-addr=127.0.0.{number + 1}", "worker.py")


def ups(job, world):
    """The workers of all attempts in a group of that size."""
    return [int(pid) for pid in re.findall(rf"^UP {world} (\d+)$", job.text(), re.M)]


@pytest.mark.parametrize("backend", ["c10d", "etcd-v3"])
def test_who_is_known_is_waited_for_and_nobody_else(tmp_path, backend):
    (tmp_path / "worker.py").write_text(WORKER)
    with place(backend, tmp_path) as endpoint, node(tmp_path, 0, backend, endpoint) as first:
        with node(tmp_path, 1, backend, endpoint) as second:
            second.until(lambda _: ups(second, 2) and ups(first, 2))  # All who may come are there: no last call.
            os.kill(ups(second, 2)[-1], signal.SIGKILL)
            second.until(lambda _: min(len(ups(second, 2)), len(ups(first, 2))) >= 2)
        first.until(lambda _: ups(first, 1))  # A node was lost,
        os.kill(ups(first, 1)[-1], signal.SIGKILL)
        first.until(lambda _: len(ups(first, 1)) >= 2)  # and then a worker of the last one.
        with node(tmp_path, 1, backend, endpoint) as third:  # A node that comes later joins as growth does.
            third.until(lambda _: ups(third, 2) and len(ups(first, 2)) >= 3)


@pytest.mark.parametrize("backend", ["c10d", "etcd-v3"])
def test_always_is_as_in_torch(tmp_path, backend):
    (tmp_path / "worker.py").write_text(WORKER)
    with place(backend, tmp_path) as endpoint, node(tmp_path, 0, backend, endpoint, ",last_call=always") as first:
        with node(tmp_path, 1, backend, endpoint, ",last_call=always") as second:
            second.until(lambda _: ups(second, 2) and ups(first, 2))
        first.until("was lost")
        time.sleep(2)
        assert not ups(first, 1), first.text()
        with node(tmp_path, 1, backend, endpoint, ",last_call=always") as third:
            third.until(lambda _: ups(third, 2) and len(ups(first, 2)) >= 2)
