"""Our handler and torch's own DynamicRendezvousHandler in one rendezvous."""
from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time

import pytest

from rdzv_nodes import NODE, ROOT, Node, TorchNode, free_port

pytest.importorskip("torch")


@pytest.fixture
def nodes():
    """Makes nodes and ends them, clients before hosts."""
    made = []

    def make(kind, *args, **kwargs):
        made.append(kind(*args, **kwargs))
        return made[-1]

    yield make
    for node in reversed(made):
        node.end()


def round_of(*members):
    """What all say of the round they are in: ranks each once, one world, one master."""
    said = [m.joined() for m in members]
    assert len({s[0] for s in said}) == 1, said
    assert {s[2] for s in said} == {len(members)}, said
    assert sorted(s[1] for s in said) == list(range(len(members))), said
    assert len({s[3] for s in said}) == 1, said
    return said


def next_all(*members):
    for m in members:
        m.tell_next() if isinstance(m, TorchNode) else m.tell("next")


@pytest.mark.parametrize("host", ["ours", "torch"])
def test_rounds_with_torch(nodes, host):
    """Several rounds in a row; the ranks are the order of the descriptors."""
    at = f"127.0.0.1:{free_port()}"
    if host == "torch":
        t = nodes(TorchNode, at, nodes=(3, 3), addr="127.0.0.1", is_host=True)
        a = nodes(Node, at, nodes=(3, 3), addr="0-first", conf="is_host=0")
    else:
        a = nodes(Node, at, nodes=(3, 3), addr="0-first")
        a.tell("next")
        a.heard("hosts the TCP store")
        t = nodes(TorchNode, at, nodes=(3, 3), addr="127.0.0.1")
    b = nodes(Node, at, nodes=(3, 3), addr="z-last", conf="is_host=0")
    for round_ in range(3):
        next_all(*([a, t, b] if host == "torch" or round_ else [t, b]))
        said = round_of(a, t, b)
        assert [s[1] for s in said] == [0, 1, 2]
        assert said[0][0] == round_
    t.handler.set_closed()
    a.heard("CLOSED")
    assert a.ask("next").startswith("error MUSTER_ECLOSED")


def test_torch_in_a_file(nodes, tmp_path):
    path = str(tmp_path / "rdzv")
    t = nodes(TorchNode, path, nodes=(2, 2), addr="127.0.0.1", store_type="file")
    a = nodes(Node, path, nodes=(2, 2), addr="a", conf="store_type=file")
    next_all(t, a)
    round_of(t, a)


def test_our_newcomer_grows_torchs_job(nodes):
    """torch's rank 0 says nothing anew in later rounds: the address is in round 0's keys."""
    at = f"127.0.0.1:{free_port()}"
    t = nodes(TorchNode, at, nodes=(1, 2), addr="127.0.0.1", is_host=True, last_call_timeout=1)
    next_all(t)
    first = t.joined()
    a = nodes(Node, at, nodes=(1, 2), addr="z", conf="is_host=0,last_call_timeout=5")
    a.tell("next")
    while t.handler.num_nodes_waiting() == 0:
        time.sleep(0.05)
    next_all(t)
    said = round_of(t, a)
    assert said[0][0] == 1 and said[1][3] == first[3]


def test_torch_newcomer_grows_our_job(nodes):
    """A torch newcomer reads the address under the new round: ours announces it there."""
    at = f"127.0.0.1:{free_port()}"
    a = nodes(Node, at, nodes=(1, 2), addr="127.0.0.1", conf="last_call_timeout=3")
    a.tell("next")
    first = a.joined()
    t = nodes(TorchNode, at, nodes=(1, 2), addr="z", last_call_timeout=5, read_timeout=10)
    next_all(t)
    a.heard("WAITING")
    next_all(a)
    said = round_of(a, t)
    assert said[1][3] == first[3]


@pytest.mark.parametrize("zero", ["ours", "torch"])
def test_worker_zero_serves(nodes, zero, monkeypatch):
    """TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: rank 0 names a port, anew in each round."""
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    at = f"127.0.0.1:{free_port()}"
    a = nodes(Node, at, nodes=(2, 2), addr="a" if zero == "ours" else "z")
    a.tell("next")
    a.heard("hosts the TCP store")
    t = nodes(TorchNode, at, nodes=(2, 2), addr="m")
    next_all(t)
    for more in (True, False):
        said = round_of(a, t)
        name, port = said[0][3].rsplit(":", 1)
        assert name == ("a" if zero == "ours" else "m")
        with socket.create_server(("127.0.0.1", int(port))):
            pass  # nobody listens there: that is for the worker
        if more:
            next_all(a, t)


def test_grow_shrink_grow(nodes):
    """1 -> 2 -> 3, rank 0 leaves, 2 -> 3 again: with torch's shared store on."""
    at = f"127.0.0.1:{free_port()}"
    conf = "last_call_timeout=3"
    host = nodes(Node, at, nodes=(1, 3), addr="m", conf=conf)
    host.tell("next")
    host.joined()
    zero = nodes(Node, at, nodes=(1, 3), addr="a", conf=conf)
    zero.tell("next")
    host.heard("WAITING")
    next_all(host)
    assert [s[1] for s in round_of(zero, host)] == [0, 1]
    third = nodes(Node, at, nodes=(1, 3), addr="z", conf=conf)
    third.tell("next")
    for n in (zero, host):
        n.heard("WAITING")
        n.forget()
    next_all(zero, host)
    round_of(zero, host, third)
    assert zero.ask("leave") == "ok"
    for n in (host, third):
        n.heard("LOST")
        n.forget()
    next_all(host, third)
    assert [s[1] for s in round_of(host, third)] == [0, 1]
    again = nodes(Node, at, nodes=(1, 3), addr="b", conf=conf)
    again.tell("next")
    for n in (host, third):
        n.heard("WAITING")
    next_all(host, third)
    assert [s[1] for s in round_of(again, host, third)] == [0, 1, 2]


def test_a_spare_is_dismissed(nodes):
    at = f"127.0.0.1:{free_port()}"
    a = nodes(Node, at, nodes=(1, 1), addr="a")
    a.tell("next")
    a.joined()
    spare = nodes(Node, at, nodes=(1, 1), addr="b")
    spare.tell("next")
    time.sleep(0.3)
    assert a.ask("waiting") == "waiting 0"  # spares do not count
    a.tell("shutdown")
    assert spare.answer().startswith("error MUSTER_EGRACEFUL")
    assert spare.end() == 0
    assert a.answer() == "ok"


def test_the_host_waits_until_closed_was_read(nodes):
    """torch polls each second: its host would be gone by then, and the poll would fail."""
    at = f"127.0.0.1:{free_port()}"
    a = nodes(Node, at, nodes=(2, 2), addr="a")
    a.tell("next")
    a.heard("hosts the TCP store")
    t = nodes(TorchNode, at, nodes=(2, 2), addr="127.0.0.1")
    next_all(t)
    round_of(a, t)
    seen = []

    def watch():
        while not (seen and seen[-1] is True):
            try:
                seen.append(t.handler.is_closed())
            except Exception as e:  # noqa: BLE001
                seen.append(e)
                return
            time.sleep(0.2)

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert a.ask("shutdown") == "ok"
    a.tell("quit")
    watcher.join(30)
    assert seen[-1] is True, seen


def test_a_killed_member_is_noticed(nodes):
    at = f"127.0.0.1:{free_port()}"
    conf = "keep_alive_interval=1,keep_alive_max_attempt=2,last_call_timeout=4"
    a = nodes(Node, at, nodes=(1, 2), addr="a", conf=conf)
    a.tell("next")
    a.heard("hosts the TCP store")
    b = nodes(Node, at, nodes=(1, 2), addr="b", conf=conf)
    b.tell("next")
    round_of(a, b)
    b.kill()
    a.heard("LOST")
    a.tell("next")
    assert a.joined()[1:3] == (0, 1)


def test_an_evicted_node_is_told_and_comes_back(nodes):
    """Stopped for longer than its beats may stay away, then continued."""
    at = f"127.0.0.1:{free_port()}"
    conf = "keep_alive_interval=1,keep_alive_max_attempt=2,last_call_timeout=4"
    a = nodes(Node, at, nodes=(1, 2), addr="a", conf=conf)
    a.tell("next")
    a.heard("hosts the TCP store")
    b = nodes(Node, at, nodes=(1, 2), addr="b", conf=conf)
    b.tell("next")
    round_of(a, b)
    b.kill(signal.SIGSTOP)
    a.heard("LOST")
    a.forget()
    a.tell("next")
    assert a.joined()[2] == 1  # the others go on without it,
    b.kill(signal.SIGCONT)
    b.heard("EVICTED")  # which it learns,
    b.tell("next")  # and comes back.
    a.heard("WAITING")
    a.tell("next")
    round_of(a, b)


def test_other_settings_are_told(nodes):
    at = f"127.0.0.1:{free_port()}"
    a = nodes(Node, at, nodes=(2, 2), addr="a")
    a.tell("next")
    a.heard("hosts the TCP store")
    b = nodes(Node, at, nodes=(2, 3), addr="b", conf="join_timeout=5")
    b.tell("next")
    assert "different settings: --nnodes is 2:3 here, 2 there" in b.answer()
    assert "different settings: --nnodes is 2 here, 2:3 there" in a.heard("turned node b away")


def test_other_settings_that_do_no_harm_are_told(nodes):
    """The node hears it from its run, and the host names the node."""
    at = f"127.0.0.1:{free_port()}"
    a = nodes(Node, at, nodes=(2, 2), addr="a")
    a.tell("next")
    a.heard("hosts the TCP store")
    b = nodes(Node, at, nodes=(2, 2), addr="b", conf="join_timeout=300")
    b.tell("next")
    assert "join_timeout in ms is 300000 here, 600000 there" in b.heard("different settings")
    assert "join_timeout in ms is 600000 here, 300000 there" in a.heard("node b:")
    round_of(a, b)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs process namespaces")
def test_equal_names_are_told_apart(nodes):
    """Two containers with one host name, each the only process in its namespace."""
    at = f"127.0.0.1:{free_port()}"
    apart = ("unshare", "--pid", "--fork", "--kill-child")
    a = nodes(Node, at, nodes=(2, 2), addr="same", prefix=apart)
    a.tell("next")
    a.heard("hosts the TCP store")
    b = nodes(Node, at, nodes=(2, 2), addr="same", prefix=apart)
    b.tell("next")
    said = [a.joined(), b.joined()]
    assert sorted(s[1] for s in said) == [0, 1] and {s[2] for s in said} == {2}
    b.heard("another node of the rendezvous 'job' is alive as 'same_")


def test_a_busy_reader_keeps_beating(nodes):
    """torch's node that sits in a blocking read is dropped after its keep-alive time."""
    at = f"127.0.0.1:{free_port()}"
    conf = "keep_alive_interval=1,keep_alive_max_attempt=4"
    a = nodes(Node, at, nodes=(2, 2), addr="a", conf=conf)
    a.tell("next")
    a.heard("hosts the TCP store")
    b = nodes(Node, at, nodes=(2, 2), addr="b", conf=conf)
    b.tell("next")
    round_of(a, b)
    b.tell("barrier")  # blocks: a does not come yet
    time.sleep(6)
    assert not a.news and not b.news
    assert a.ask("barrier") == "passed" and b.answer() == "passed"


@pytest.fixture(scope="session")
def clock(tmp_path_factory):
    """A library that shifts the wall clock of whoever preloads it."""
    library = tmp_path_factory.mktemp("clock") / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, ROOT / "tests/hosts/clock.c", "-ldl"],
                   check=True)
    return str(library)


@pytest.mark.parametrize("ahead", [-20, 20])
@pytest.mark.parametrize("host", ["ours", "torch"])
def test_skewed_clocks_with_torch(nodes, clock, host, ahead):
    """Among torch's own nodes, 20 s of skew give one node a world of 1, the other of 2."""
    at = f"127.0.0.1:{free_port()}"
    env = {"LD_PRELOAD": clock, "CLOCK_AHEAD": str(ahead)}
    if host == "torch":
        t = nodes(TorchNode, at, nodes=(2, 2), addr="127.0.0.1", is_host=True)
        a = nodes(Node, at, nodes=(2, 2), addr="z", conf="is_host=0", env=env)
        next_all(t, a)
    else:
        a = nodes(Node, at, nodes=(2, 2), addr="127.0.0.1", env=env)
        a.tell("next")
        a.heard("hosts the TCP store")
        t = nodes(TorchNode, at, nodes=(2, 2), addr="z")
        next_all(t)
    round_of(a, t)
    time.sleep(2.5)  # polls and beats of both see the other alive
    assert t.handler.num_nodes_waiting() == 0 and not a.news
    next_all(a, t)
    round_of(a, t)


def test_the_example():
    at = f"127.0.0.1:{free_port()}"
    program = ROOT / os.environ.get("MUSTER_BUILD", "build") / "examples/example_rendezvous"
    runs = [subprocess.Popen([program, at, "example", "3"], stdout=subprocess.PIPE, text=True)
            for _ in range(3)]
    said = sorted(p.communicate(timeout=60)[0] for p in runs)
    assert [p.returncode for p in runs] == [0, 0, 0]
    assert [s[:20] for s in said] == [f"round 0: rank {i} of 3"[:20] for i in range(3)]


# ---- What can go wrong with the store ----


def test_name_that_does_not_resolve(nodes):
    a = nodes(Node, "no-such-host.invalid:29400", addr="a", conf="read_timeout=2")
    said = a.ask("next")
    assert said.startswith("error MUSTER_ECONN The connection to the C10d store has failed")
    assert "no-such-host.invalid" in said and "'job'" in said


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9\r\n", b""])
def test_another_service_has_the_port(nodes, answer):
    with socket.create_server(("127.0.0.1", 0)) as server:
        def serve():
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                if answer:
                    peer.sendall(answer)
                kept.append(peer)
        kept = []
        threading.Thread(target=serve, daemon=True).start()
        port = server.getsockname()[1]
        a = nodes(Node, f"127.0.0.1:{port}", addr="a", conf="read_timeout=2")
        said = a.ask("next")
        assert said.startswith("error MUSTER_ECONN") and str(port) in said
        for peer in kept:
            peer.close()


def torch_store(port=0):
    from datetime import timedelta
    from torch.distributed import TCPStore
    return TCPStore("127.0.0.1", port, is_master=True, timeout=timedelta(seconds=20), wait_for_workers=False)


@pytest.mark.parametrize("value", [b"not base64!", b"AAAA", b"gASVAAAA", b"Y29zCnN5c3RlbQo=", b"gAWVCAAAAAAAAACMBGV2aWyULg==",
                                   b"A" * 100000])
def test_state_that_cannot_be_read(nodes, value):
    store = torch_store()
    store.set("torch.rendezvous.job", value)
    a = nodes(Node, f"127.0.0.1:{store.port}", addr="a", conf="is_host=0")
    said = a.ask("next")
    assert said.startswith("error MUSTER_ESTATE"), said
    assert "'job'" in said and str(store.port) in said


def test_closed_run_id(nodes):
    store = torch_store()
    at = f"127.0.0.1:{store.port}"
    a = nodes(Node, at, addr="a", conf="is_host=0")
    a.tell("next")
    a.joined()
    assert a.ask("shutdown") == "ok"
    b = nodes(Node, at, addr="b", conf="is_host=0")
    said = b.ask("next")
    assert said.startswith("error MUSTER_ECLOSED") and "'job'" in said
