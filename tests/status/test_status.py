"""`muster status`: jobs of this machine, one of them in whole, bad input, a stopped agent."""
from __future__ import annotations

import json
import os
import re
import signal
import socket
import struct
import subprocess

import pytest
from etcd_server import Etcd
from patience import clock
from schemas import fits
from watched import MUSTER, free_port, get, muster, running, start, status, stop, until, url


@pytest.fixture
def job(tmp_path):
    j = start(tmp_path, "--log-dir", tmp_path / "logs", "--redirects", "3", "--standalone")
    yield j
    (tmp_path / "end").touch()
    stop(j)


def test_tells_of_nodes_and_workers(job, tmp_path):
    for rank in (0, 1):
        until((tmp_path / f"began.{rank}.0").exists)  # before that it may not be a Python yet
    s = running(job)
    fits(s, "status")
    node = s["nodes"][0]
    assert s["scope"] == "job" and node["ranks"] == 2 and node["alive"] == 2
    for w in node["workers"]:
        assert w["state"] == "running" and w["memory"] > 1 << 20
        assert os.readlink(f"/proc/{w['pid']}/exe")
    text = muster("status", job.pid).stdout
    assert "running" in text and "0-1" in text and "2 ranks" in text, text
    assert "\x1b" not in text
    workers = muster("status", job.pid, "--workers").stdout
    assert f"pid {node['workers'][1]['pid']}" in workers, workers
    listed = json.loads(muster("status", "--json").stdout)
    fits(listed, "status-list")
    assert job.pid in [j["pid"] for j in listed["jobs"]]


def test_the_workers_store_counts(job, tmp_path):
    """What the workers ask their store, which is not that of the rendezvous."""
    until((tmp_path / "began.0.0").exists)  # before that its environment may be the agent's
    s = running(job)
    environ = dict(e.split("=", 1) for e in
                   open(f"/proc/{s['nodes'][0]['workers'][0]['pid']}/environ").read().split("\0") if "=" in e)
    before = status(job)["nodes"][0]["store"]["requests"]
    with socket.create_connection((environ["MASTER_ADDR"], int(environ["MASTER_PORT"])), 60) as c:
        c.sendall(struct.pack("<BI", 0, 0x3C85F7CE))
        for i in range(500):
            c.sendall(struct.pack("<BQ2sq", 4, 2, b"/n", 1))
            assert struct.unpack("<q", c.recv(8, socket.MSG_WAITALL))[0] == i + 1
        store = status(job)["nodes"][0]["store"]
    assert store["requests"] >= before + 500 and store["keys"] >= 1
    assert f"muster_store_requests_total {before}" not in get(url(job) + "metrics")[2]


def test_spares_are_seen_by_all(tmp_path):
    port = free_port()
    words = ("--rdzv-backend", "c10d", "--nnodes", "1:2", "--rdzv-endpoint", f"localhost:{port}",
             "--rdzv-conf", "last_call_timeout=60")
    jobs = []
    try:
        for i in range(3):
            jobs.append(start(tmp_path, *words, name=f"node{i}", page=None))
            until(lambda: status(jobs[-1]), "its agent")  # noqa: B023
        running(jobs[0], 2)

        def spare(j):
            s = status(j)
            return s if s and sorted(n["state"] for n in s["nodes"]) == ["running", "running", "spare"] else None
        for j in jobs:
            s = until(lambda: spare(j), "the spare")  # noqa: B023
            assert s["scope"] == "job" and s["job"]["nodes"] == 2 and s["job"]["ranks"] == 4
            assert [n["pid"] for n in s["nodes"] if n.get("coordinator")] == [jobs[0].pid]
            assert all(n["address"] for n in s["nodes"]), s["nodes"]
        assert "a spare, since all 2 places are taken" in muster("status", jobs[0].pid).stdout
    finally:
        (tmp_path / "end").touch()
        for j in jobs:
            assert j.wait() == 0, j.text()
    assert "without this spare node being needed" in jobs[2].text() and "error" not in jobs[2].text()


def test_spares_on_etcd_are_named(tmp_path):
    with Etcd(tmp_path) as server:
        words = ("--rdzv-backend", "etcd-v3", "--nnodes", "1:2", "--rdzv-endpoint", server.endpoint,
                 "--rdzv-conf", "last_call_timeout=60")
        jobs = []
        try:
            for i in range(3):
                jobs.append(start(tmp_path, *words, "--local-addr", f"127.0.0.{i + 1}", name=f"node{i}", page=None))
                if i == 1:
                    running(jobs[0], 2)
            for j in jobs[:2]:
                until(lambda: status(j)["job"]["spares"] == ["127.0.0.3"], "the spare")  # noqa: B023
            assert "waiting as a spare: 127.0.0.3\n" in muster("status", jobs[0].pid).stdout
            until(lambda: [n["state"] for n in status(jobs[2])["nodes"]] == ["spare"], "its own word")
            assert status(jobs[2])["job"]["spares"] == []
        finally:
            (tmp_path / "end").touch()
            for j in jobs:
                assert j.wait() == 0, j.text()


def test_watch_repeats(job):
    running(job)
    with subprocess.Popen([str(MUSTER), "status", str(job.pid), "--watch=0.1"], stdout=subprocess.PIPE, text=True) as p:
        seen = sum("round" in p.stdout.readline() for _ in range(20))
        p.terminate()
    assert seen >= 2


def test_a_failure_is_a_restart_with_its_cause(tmp_path):
    j = start(tmp_path, "--standalone", "--max-restarts", "2")
    try:
        running(j)
        until((tmp_path / "began.1.0").exists)
        (tmp_path / "fail.1").touch()
        until((tmp_path / "began.1.1").exists)
        s = until(lambda: (lambda t: t if t and t["job"]["restarts"] == 1 else None)(status(j)), "the restart")
        assert s["nodes"][0]["restarts"] == 1
    finally:
        (tmp_path / "end").touch()
        stop(j)


def test_bad_input_is_a_sentence(job):
    running(job)
    for words, sentence in (
        (["nosuchjob"], "no job nosuchjob of yours"),
        (["1234567890"], "no job 1234567890"),
        (["--nonsense"], "there is no such option"),
        (["--jsno"], "--jsno: there is no such option; did you mean --json?"),
        (["a", "b"], "one job at a time"),
        (["--watch=x"], "give a time"),
        (["--url", "nosuchjob"], "no job nosuchjob"),
    ):
        done = muster("status", *words, check=False)
        assert done.returncode in (1, 2) and sentence in done.stderr, (words, done.stderr)
        assert done.stderr.strip().splitlines()[0].startswith("muster status: error: ")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_another_users_job_is_told_of_as_such(job):
    running(job)
    done = subprocess.run(["setpriv", "--reuid=65534", "--clear-groups", str(MUSTER), "status", str(job.pid)],
                          capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and "is a job of user root" in done.stderr, done.stderr


def test_a_stopped_agent_does_not_delay_the_others(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    a = start(tmp_path / "a", "--standalone", page=None)
    b = start(tmp_path / "b", "--standalone", page=None)
    try:
        running(a), running(b)
        os.kill(a.pid, signal.SIGSTOP)
        best = 99.0
        for _ in range(3):  # a loaded machine is slow; once is proof
            began = clock()
            listed = json.loads(muster("status", "--json").stdout)
            best = min(best, clock() - began)
            assert b.pid in [j["pid"] for j in listed["jobs"]]
            silent = {x["pid"]: x["error"] for x in listed["silent"]}
            assert "is it stopped?" in silent[a.pid]
        assert best < 1.6, best
        done = muster("status", a.pid, check=False)
        assert done.returncode == 1 and "is it stopped?" in done.stderr
    finally:
        os.kill(a.pid, signal.SIGCONT)
        for where in ("a", "b"):
            (tmp_path / where / "end").touch()
        stop(a, b)


def test_a_port_that_is_taken_does_not_stop_the_job(tmp_path, job):
    running(job)
    taken = url(job).split(":")[2].rstrip("/")
    (tmp_path / "more").mkdir()
    other = start(tmp_path / "more", "--standalone", page=f"127.0.0.1:{taken}")
    try:
        other.until("The job runs without its page")
        assert f"--status-http=127.0.0.1:{taken}" in other.text()
        running(other)
    finally:
        (tmp_path / "more" / "end").touch()
        stop(other)


def test_what_cannot_be_an_address_is_said_at_once(tmp_path):
    j = start(tmp_path, "--standalone", page="node1:http")
    assert j.wait() != 0
    assert "--status-http: node1:http: give ADDR:PORT" in j.text(), j.text()


def test_names_that_are_markup_stay_text(tmp_path):
    evil = "<img src=x onerror=alert(1)>\x1b[2J"
    j = start(tmp_path, "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", run_id=evil)
    try:
        s = running(j)
        assert s["job"]["run_id"] == evil
        text = muster("status", j.pid).stdout
        assert "<img src=x onerror=alert(1)>?[2J" in text and "\x1b" not in text
        page = get(url(j))[2]
        assert "<img src=x" not in page and "&lt;img src=x" in page and "\x1b" not in page
        metrics = get(url(j) + "metrics")[2]
        assert "\x1b" not in metrics
    finally:
        (tmp_path / "end").touch()
        stop(j)


def test_a_coordinator_elsewhere_tells_of_its_jobs(tmp_path):
    port = free_port()
    j = start(tmp_path, "--rdzv-backend", "c10d", "--nnodes", "1:2", "--rdzv-endpoint", f"localhost:{port}",
              "--rdzv-conf", "last_call_timeout=1", page=None)
    try:
        running(j)
        s = json.loads(muster("status", f"localhost:{port}", "--json").stdout)
        assert s["scope"] == "job" and s["job"]["run_id"] == "seen" and s["job"]["state"] == "running"
        assert s["nodes"][0]["alive"] == 2 and s["store"]["requests"] > 0
        assert "seen   running" in muster("status", f"localhost:{port}").stdout
        assert muster("status", f"localhost:{free_port()}", check=False).returncode == 1
    finally:
        (tmp_path / "end").touch()
        stop(j)


def test_store_tells_of_itself(tmp_path):
    port_file = tmp_path / "port"
    with subprocess.Popen([str(MUSTER), "store", "--port", "0", "--port-file", str(port_file), "--status-http", ":0"],
                          stdout=subprocess.DEVNULL) as p:
        try:
            until(port_file.exists)
            done = until(lambda: (lambda d: d if d.returncode == 0 else None)(
                muster("status", p.pid, "--json", check=False)))
            s = json.loads(done.stdout)
            fits(s, "status")
            assert s["scope"] == "store" and s["store"]["keys"] == 0
            address = muster("status", "--url", p.pid).stdout.strip()
            assert "muster_store_requests_total 0" in get(address + "metrics")[2]
            assert get(address + "healthz")[2] == "ok\n"
            at = f"localhost:{port_file.read_text().strip()}"  # and from elsewhere
            s = json.loads(muster("status", at, "--json").stdout)
            fits(s, "status")
            assert s["scope"] == "store" and s["store"]["connections"] == 1
            assert muster("status", at).stdout.startswith(f"muster store {at}\n  store: 1 connection, 0 keys, ")
            done = muster("status", f"{at}/job7", check=False)
            assert done.returncode == 1 and "no job job7 of muster uses this store" in done.stderr
        finally:
            p.terminate()
    assert p.returncode == 0


@pytest.mark.skipif(bool(os.environ.get("MUSTER_BUILD")), reason="a sanitizer's runtime comes along")
def test_a_job_that_nobody_looks_at_loads_no_more_libraries():
    """Each costs every start some pages: those for a page or a screen are loaded when they are asked for."""
    text = subprocess.run(["readelf", "-d", str(MUSTER)], capture_output=True, text=True, check=True).stdout
    needed = {name.split(".so")[0] for name in re.findall(r"NEEDED.*\[(.*?)\]", text)}
    assert {n for n in needed if not n.startswith("ld-linux")} == {"libc", "libjansson", "libuv"}


NVML = """
#include <stdio.h>
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { *d = (void *)(long)(i + 1); return 0; }
int nvmlDeviceGetName(void *d, char *t, unsigned n) { return snprintf(t, n, "H100 \\033[2J") < 0; }
int nvmlDeviceGetUtilizationRates(void *d, unsigned r[2]) { r[0] = 90 + 2 * (long)d; return 0; }
int nvmlDeviceGetMemoryInfo(void *d, unsigned long long m[3]) { m[0] = 80ull << 30; m[2] = 20ull << 30; return 0; }
int nvmlDeviceGetTemperature(void *d, int s, unsigned *c) { *c = 61; return s; }
"""


def test_gpus_by_nvml(tmp_path):
    """A library of recorded answers stands in for NVIDIA's: nobody here has a GPU."""
    (tmp_path / "nvml.c").write_text(NVML)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "libnvidia-ml.so.1", tmp_path / "nvml.c"], check=True)
    j = start(tmp_path, "--standalone", page=None, env={"LD_LIBRARY_PATH": str(tmp_path)})
    try:
        s = running(j)
        fits(s, "status")
        gpus = s["nodes"][0]["gpus"]
        assert [g["utilization"] for g in gpus] == [92, 94] and gpus[0]["memory"] == 20 << 30, gpus
        text = muster("status", j.pid).stdout
        assert "2 GPUs 93 % busy, 40.0 GiB of 160.0 GiB" in text and "\x1b" not in text, text
    finally:
        (tmp_path / "end").touch()
        stop(j)
