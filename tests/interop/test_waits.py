"""What a person sees of each wait that an agent can be in: who is missing, until when."""
from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from etcd_server import Etcd, free_ports
from patience import clock
from run_job import Job
from screens import MUSTER, free_port, screen  # noqa: F401 (a fixture)
from stores import Wire

WAITING = r"waiting \d+ s: "
UNTIL = r" \(until \d\d:\d\d:\d\d, \d+ s more\)"
LOG = {"TERM": "dumb"}  # a terminal that cannot rewrite a line gets what a log gets


@pytest.fixture(scope="module")
def etcd(tmp_path_factory):
    with Etcd(tmp_path_factory.mktemp("etcd")) as server:
        yield server


def end(nodes: list) -> None:
    for n in nodes:
        n.process.terminate()
    for n in nodes:
        n.process.wait(60)


def on_etcd(endpoint: str, nnodes: str, *worker: str, backend: str = "etcd") -> list[str]:
    return [MUSTER, "run", f"--nnodes={nnodes}", f"--rdzv-backend={backend}",
            f"--rdzv-endpoint={endpoint}", "--rdzv-id=job",
            "--rdzv-conf=timeout=100,read_timeout=100,last_call_timeout=60",
            "--local-addr=127.0.0.1", "--no-python", *(worker or ["true"])]


def test_torchs_first_etcd_rendezvous(screen, etcd) -> None:
    """One is missing; then three may come; then a fourth finds them at work."""
    job = on_etcd(etcd.endpoint, "2:3", "sleep", "1000")
    nodes = [screen(job)]
    nodes[0].read(WAITING + "1 of 2 nodes are here, 1 missing" + UNTIL)
    nodes += [screen(job)]
    for n in nodes:
        n.read(r"2 of at most 3 nodes are here \(starting at \d\d:\d\d:\d\d, \d+ s more\)")
    nodes += [screen(job)]
    for n in nodes[:2]:
        n.read("the group is complete after .* 3 nodes")
    # They make room for it, but their version is in etcd for ten seconds more.
    late = screen(on_etcd(etcd.endpoint, "2:4"))
    late.read(WAITING + "the group is at work in a round")
    end([late, *nodes])


def test_an_etcd_that_does_not_answer_is_told_in_a_log(screen) -> None:
    port, _ = free_ports(2)
    nodes = [screen(on_etcd(f"127.0.0.1:{port}", "2", backend=b), **LOG)
             for b in ("etcd", "etcd-v2", "etcd-v3")]
    for n in nodes:
        n.read(WAITING + f"the store at 127.0.0.1:{port} has not been reached" + UNTIL + ": "
                       ".*connection refused")
    end(nodes)


def static(port: int, rank: int, nnodes: int) -> list[str]:
    return [MUSTER, "run", f"--nnodes={nnodes}", f"--node-rank={rank}",
            "--master-addr=127.0.0.1", f"--master-port={port}", "--rdzv-id=job",
            "--no-python", "true"]


def test_a_static_group_names_the_ranks_that_are_missing(screen) -> None:
    port = free_port()
    nodes = [screen(static(port, 0, 3), columns=200)]
    nodes[0].read(WAITING + "1 of 3 nodes are here, missing: node ranks 1, 2")
    nodes += [screen(static(port, 1, 3), columns=200)]
    nodes[0].read(WAITING + r"2 of 3 nodes are here, missing: node rank 2\b")
    nodes[1].read(WAITING + "node rank 0 has not given out ranks")
    nodes += [screen(static(port, 2, 3), columns=200)]
    nodes[0].read("the group is complete after .* 3 nodes")
    nodes[1].read("all 3 nodes have their ranks after")
    for n in nodes:
        assert n.process.wait(60) == 0, n.text


def test_a_node_that_does_not_tell_of_its_workers(screen) -> None:
    """Node 1 counts itself in and falls silent: at the ranks, and once more at the end."""
    key = "/job/torchelastic/"
    port = free_port()
    node = screen(static(port, 0, 2), columns=200)
    node.read(WAITING + r"1 of 2 nodes are here, missing: node rank 1\b")
    with Wire(port) as silent:
        silent.add("init/", 1)
        node.read(WAITING + r"1 of 2 nodes are here to get ranks, missing: node rank 1\b")
        silent.set(key + "role_info/1",
                   '{"role": "default", "rank": 1, "local_world_size": 1}')
        node.read("all 2 nodes have their ranks after")
        node.read(WAITING + "1 of 2 nodes are done, 1 at work")
        silent.add(key + "agent/terminal_state/num_members", 1)
        silent.set(key + "agent/terminal_state/last_member", "<val_ignored>")
        node.read("all 2 nodes are done after")
    assert node.process.wait(60) == 0, node.text


@pytest.mark.parametrize("backend", ["c10d", "etcd-v3"])
def test_who_is_done_does_not_wait_for_one_that_has_failed(etcd, tmp_path: Path, backend) -> None:
    """Its node has closed the run: torchrun waits for it for five minutes."""
    go = tmp_path / "go"
    script = f"[ $GROUP_RANK = 0 ] || exit 7; until [ -e {go} ]; do sleep 0.1; done"
    endpoint = f"127.0.0.1:{free_port()}" if backend == "c10d" else etcd.endpoint
    # The store must not go with the one that fails.
    hosts = (["--rdzv-conf=is_host=1"], ["--rdzv-conf=is_host=0"]) if backend == "c10d" else ([], [])
    nodes = [subprocess.Popen([MUSTER, "run", "--nnodes=2", f"--rdzv-backend={backend}",
                               f"--rdzv-endpoint={endpoint}", "--rdzv-id=fails", "--no-python",
                               "--on-failure=finish", f"--local-addr={name}", *host, "sh", "-c",
                               script], stderr=subprocess.PIPE, text=True)
             for name, host in zip(("127.0.0.1", "localhost"), hosts)]
    try:
        assert nodes[1].communicate(timeout=60)[0] is None and nodes[1].returncode == 1
        seen = ""
        while "another node has closed the run: it failed" not in seen:
            line = nodes[0].stderr.readline()
            assert line, seen
            seen += line
        go.touch()
        text = nodes[0].communicate(timeout=60)[1]  # the barrier itself would take 300 s
        assert "nother node has closed the run" in text
        assert "Another node has closed the run: it failed, or was ended. Its log tells why." in text
        assert nodes[0].returncode == 0
    finally:
        for n in nodes:
            n.kill()
            n.wait()


@pytest.mark.parametrize("backend", ["c10d", "etcd"])
def test_who_is_done_waits_for_the_others(screen, etcd, tmp_path: Path, backend) -> None:
    go = tmp_path / "go"
    script = f"echo rank $GROUP_RANK; [ $GROUP_RANK = 0 ] || until [ -e {go} ]; do sleep 0.1; done"
    endpoint = f"127.0.0.1:{free_port()}" if backend == "c10d" else etcd.endpoint
    nodes = [screen([MUSTER, "run", "--nnodes=2", f"--rdzv-backend={backend}",
                     f"--rdzv-endpoint={endpoint}", "--rdzv-id=end", "--no-python",
                     "--local-addr=127.0.0.1", "sh", "-c", script], columns=200)
             for _ in range(2)]
    first = next(n for n in nodes if "rank 0" in n.read(r"rank \d"))
    first.read(WAITING + "1 of 2 nodes are done, 1 at work")
    go.touch()
    first.read("all 2 nodes are done after")
    for n in nodes:
        assert n.process.wait(60) == 0, n.text


def test_a_run_that_is_closed_is_not_closed_again(tmp_path):
    """A node whose worker fails after the host has failed, closed the run and gone ends at once: there
    is nobody to tell, and nothing to decide."""
    words = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=late",
             "--on-failure=finish", "--no-python", "sh", "-c"]
    with Job(tmp_path, "host", "--rdzv-conf=is_host=1", *words, "exit 1") as host:
        with Job(tmp_path, "other", "--rdzv-conf=is_host=0", *words, "until [ -e go ]; do sleep 0.05; done; exit 1") as other:
            assert host.wait() == 1
            (tmp_path / "go").touch()
            began = clock()
            assert other.wait() == 1
            assert clock() - began < 4  # 9 s, when it tried
