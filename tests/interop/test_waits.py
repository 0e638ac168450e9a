"""What a person sees of each wait that an agent can be in: who is missing, until when."""
from __future__ import annotations

import pytest
from etcd_server import Etcd, free_ports
from screens import MUSTER, screen  # noqa: F401 (a fixture)

TIMES = r"waiting \d+ s, until \d\d:\d\d:\d\d \(\d+ s more\): "
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
    nodes[0].read(TIMES + "1 of 2 nodes are here, 1 miss")
    nodes += [screen(job)]
    for n in nodes:
        n.read(r"starting at \d\d:\d\d:\d\d \(\d+ s more\): 2 nodes are here, 3 m")
    nodes += [screen(job)]
    for n in nodes[:2]:
        n.read("the group is complete after .* 3 nodes")
    # They make room for it, but their version is in etcd for ten seconds more.
    late = screen(on_etcd(etcd.endpoint, "2:4"))
    late.read(TIMES + "the group is at work in a round")
    end([late, *nodes])


def test_an_etcd_that_does_not_answer_is_told_in_a_log(screen) -> None:
    port, _ = free_ports(2)
    nodes = {b: screen(on_etcd(f"127.0.0.1:{port}", "2", backend=b), **LOG)
             for b in ("etcd", "etcd-v2", "etcd-v3")}
    for n in nodes.values():
        n.read(TIMES + f"the store at 127.0.0.1:{port} has not been reached")
    nodes["etcd"].read("has not been reached: .*connection refused")
    end(list(nodes.values()))
