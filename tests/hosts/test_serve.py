"""--rdzv-serve on several hosts: any minority of them dies or is cut off, at any moment, and the others go on.

How soon they do is for tests/trials/serve on a quiet machine; here the lease must not be what tells of a kill.
"""
from __future__ import annotations

import subprocess
import time
from pathlib import Path

from rig import Rig
from serving import Job, now

LEASE = "lease_ttl=60,keep_alive_interval=60"  # so long that only broken connections can tell


def alive(job: Job, i: int, script: str = "serve_sleep.py") -> list[str]:
    return [text for text in job.rig[i].processes().values() if script in text and "muster run" not in text]


def test_any_of_three_dies_and_comes_back(tmp_path: Path) -> None:
    """With a secret, so with TLS; without: tests/interop/test_etcd_serve.py."""
    (tmp_path / "token").write_text("a secret of this job, long enough")
    (tmp_path / "token").chmod(0o600)
    with Rig(3) as rig:
        job = Job(rig, tmp_path, f"--rdzv-conf={LEASE}", f"--token-file={tmp_path}/token")
        job.start()
        _, master = job.round(range(3), 0)
        for url in ("https://node1:2379/health", "http://node1:2379/health", "https://node1:2380/members"):
            done = subprocess.run([*rig[1].enter, "curl", "-sk", "-m", "10", url], capture_output=True, text=True)
            assert done.returncode != 0 and done.stdout == "", done  # a stranger is neither a client nor a peer
        first = next(i for i in range(3) if rig[i].name == master)
        for who in (first, (first + 1) % 3):  # with the coordinator, and without
            at = job.kill(who)
            _, master = job.round([i for i in range(3) if i != who], at, timeout=40)
            assert master != rig[who].name
            before = now()
            job.start(who)
            job.round(range(3), before)
        job.end()


def test_two_of_five_die_at_once(tmp_path: Path) -> None:
    with Rig(5) as rig:
        job = Job(rig, tmp_path, f"--rdzv-conf={LEASE}")
        job.start()
        _, master = job.round(range(5), 0)
        for with_the_first in (True, True, False):  # the first and later rounds
            first = next(i for i in range(5) if rig[i].name == master)
            dead = [first, (first + 2) % 5] if with_the_first else [(first + 1) % 5, (first + 3) % 5]
            at = now()
            for who in dead:
                job.kill(who)
            job.round([i for i in range(5) if i not in dead], at, timeout=40)
            before = now()
            job.start(*dead)  # at the same moment: one takes its place after the other
            _, master = job.round(range(5), before)
        job.end()


def test_whoever_is_cut_off_waits_and_comes_back(tmp_path: Path) -> None:
    with Rig(3) as rig:
        job = Job(rig, tmp_path, "--rdzv-conf=join_timeout=300", nnodes="1:3")  # one would be enough
        job.start()
        _, master = job.round(range(3), 0)
        alone = next(i for i in range(3) if rig[i].name == master)
        at = now()
        rig[alone].link(up=False)
        job.round([i for i in range(3) if i != alone], at)
        job.nodes[alone].wait_for("This node is cut off from etcd's majority", timeout=60)
        job.nodes[alone].wait_until(lambda: alive(job, alone) == [], timeout=60)
        time.sleep(2)
        assert alive(job, alone) == [] and "of 1 master" not in job.nodes[alone].output()
        before = now()
        rig[alone].link(up=True)
        job.round(range(3), before)
        job.end()


def test_an_etcd_that_was_there_before(tmp_path: Path) -> None:
    with Rig(4) as rig:
        etcd = rig[3].start(["etcd", "--data-dir", str(tmp_path / "etcd"), "--listen-client-urls", "http://0.0.0.0:2379",
                             "--advertise-client-urls", "http://node4:2379", "--unsafe-no-fsync"])
        job = Job(rig, tmp_path, f"--rdzv-conf={LEASE}", nnodes="2:3", endpoint="node4", serve=False)
        job.start(0, 1, 2)
        _, master = job.round(range(3), 0)
        who = next(i for i in range(3) if rig[i].name == master)
        at = job.kill(who)
        _, master = job.round([i for i in range(3) if i != who], at, timeout=40)
        assert master != rig[who].name
        (tmp_path / "stop").touch()
        for i in range(3):
            assert i == who or job.nodes[i].wait(60) == 0, job.said()
        etcd.popen.kill()
        etcd.wait()
