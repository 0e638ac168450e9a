"""What torch asks of a rendezvous handler and of a backend, asked of muster.torch's.

Every question goes to torch's own (c10d) too, so that the contract is torch's and not what
we take it for.
"""
from __future__ import annotations

import base64
import gc
import importlib
import itertools
import json
import pickle
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from wheels import ROOT, clock, free_port, run

torch = pytest.importorskip("torch")
from torch.distributed import TCPStore  # noqa: E402
from torch.distributed.elastic.rendezvous import (  # noqa: E402
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousHandler,
    RendezvousHandlerRegistry,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import (  # noqa: E402
    C10dRendezvousBackend,
)
from torch.distributed.elastic.rendezvous import (  # noqa: E402
    c10d_rendezvous_backend,
    dynamic_rendezvous,
    etcd_rendezvous_backend,
)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (  # noqa: E402
    DynamicRendezvousHandler,
)
from torch.distributed.elastic.rendezvous.registry import _create_c10d_handler  # noqa: E402

import etcd_server  # noqa: E402

KINDS = ["muster", "c10d"]
RUNS = itertools.count()


@pytest.fixture(scope="module")
def muster(wheel: Path, tmp_path_factory) -> Iterator[Any]:
    """The wheel's package, in this process."""
    target = tmp_path_factory.mktemp("over") / "site"
    run(sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps",
        "--disable-pip-version-check", "--target", target, wheel)
    sys.path.insert(0, str(target))
    try:
        package = importlib.import_module("muster")
        importlib.import_module("muster.torch")
        assert Path(package.__file__).is_relative_to(target)
        yield package
    finally:
        sys.path.remove(str(target))


@pytest.fixture()
def port() -> Iterator[int]:
    """Of a store that neither handler hosts: a third party."""
    server = subprocess.Popen([ROOT / "build/muster", "store", "--bind", "127.0.0.1", "--port",
                               "0"], stdout=subprocess.PIPE, text=True)
    yield int(server.stdout.readline().rsplit(":", 1)[1])
    server.kill()
    server.wait()


class Nodes:
    """Handlers of one kind on one store, each with a thread for its next_rendezvous."""

    def __init__(self, muster: Any, kind: str, port: int) -> None:
        self.registry = RendezvousHandlerRegistry()
        self.registry.register("muster", muster.torch.create_handler)
        self.registry.register("c10d", _create_c10d_handler)
        self.kind, self.port = kind, port
        self.threads = ThreadPoolExecutor(8)
        self.made: list[RendezvousHandler] = []

    def make(self, least: int = 2, most: int | None = None, **more: Any) -> RendezvousHandler:
        params = {"run_id": "job", "is_host": "false", "local_addr": "127.0.0.1",
                  "endpoint": f"127.0.0.1:{self.port}"} | more
        self.made.append(self.registry.create_handler(RendezvousParameters(
            self.kind, min_nodes=least, max_nodes=most or least, **params)))
        return self.made[-1]

    def joining(self, node: RendezvousHandler) -> Future:
        return self.threads.submit(node.next_rendezvous)

    def join(self, *nodes: RendezvousHandler) -> list[Any]:
        return [f.result(60) for f in [self.joining(n) for n in nodes]]


@pytest.fixture(params=KINDS)
def nodes(request, muster: Any, port: int) -> Iterator[Nodes]:
    made = Nodes(muster, request.param, port)
    yield made
    for node in made.made:
        node.shutdown()
    made.threads.shutdown()


def until(true: Callable[[], Any]) -> Any:
    deadline = clock() + 60
    while not (value := true()):
        assert clock() < deadline
        time.sleep(0.05)
    return value


def state_of(port: int) -> Any:
    """The shared state as torch reads it; None if there is none yet."""
    held = C10dRendezvousBackend(TCPStore("127.0.0.1", port, is_master=False), "job").get_state()
    return pickle.loads(held[0]) if held else None


def test_who_it_is(nodes: Nodes, monkeypatch) -> None:
    node = nodes.make()
    assert node.get_backend() == nodes.kind
    assert node.get_run_id() == "job"
    assert node.use_agent_store is True
    assert node.is_closed() is False and node.num_nodes_waiting() == 0
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    assert nodes.make().use_agent_store is False


def test_a_round(nodes: Nodes) -> None:
    a, b = nodes.make(), nodes.make()
    one, other = nodes.join(a, b)
    assert {one.rank, other.rank} == {0, 1}
    assert one.world_size == other.world_size == 2
    assert one.bootstrap_store_info == other.bootstrap_store_info
    assert one.bootstrap_store_info.master_port > 0
    one.store.set("key", "value")
    assert other.store.get("key") == b"value"
    assert isinstance(one.store, torch.distributed.PrefixStore)
    # With use_agent_store the address is that of a store that is there already.
    workers = TCPStore(one.bootstrap_store_info.master_addr,
                       one.bootstrap_store_info.master_port, is_master=False)
    workers.set("k", "v")
    assert workers.get("k") == b"v"


def test_newcomers_wait_and_the_next_round_has_them(nodes: Nodes) -> None:
    most = {"last_call_timeout": 1}
    a, b = nodes.make(2, 3, **most), nodes.make(2, 3, **most)
    first, _ = nodes.join(a, b)
    first.store.set("old", "round")
    c = nodes.make(2, 3, **most)
    late = nodes.joining(c)
    until(lambda: a.num_nodes_waiting() == 1)
    assert b.num_nodes_waiting() in (0, 1)  # it may hear of it later
    if nodes.kind == "c10d":
        return  # torch's newcomer reads an address that its own rank 0 never gives anew
    again = [*nodes.join(a, b), late.result(60)]
    assert sorted(i.rank for i in again) == [0, 1, 2]
    assert {i.world_size for i in again} == {3}
    assert again[0].store.check(["old"]) is False
    assert a.num_nodes_waiting() == 0


def test_a_join_that_takes_too_long(nodes: Nodes) -> None:
    with pytest.raises(RendezvousTimeoutError):
        nodes.make(2, join_timeout=1).next_rendezvous()
    until(lambda: not state_of(nodes.port).participants)  # its place is free again


def test_closed_is_for_everybody_and_for_good(nodes: Nodes) -> None:
    a, b = nodes.make(), nodes.make()
    nodes.join(a, b)
    b.set_closed()
    assert b.is_closed() is True
    until(a.is_closed)
    for node in (a, b, nodes.make()):
        with pytest.raises(RendezvousClosedError):
            node.next_rendezvous()
    b.set_closed()  # again is not an error
    assert a.shutdown() is True and b.shutdown() is True


def test_a_spare_that_is_not_needed(nodes: Nodes) -> None:
    a, b, spare = nodes.make(), nodes.make(), nodes.make()
    nodes.join(a, b)
    waiting = nodes.joining(spare)
    until(lambda: len(state_of(nodes.port).redundancy_list) == 1)
    assert a.num_nodes_waiting() == 0
    assert a.shutdown() is True
    with pytest.raises(RendezvousGracefulExitError):
        waiting.result(60)


def test_heartbeats_go_on_while_python_sleeps(nodes: Nodes) -> None:
    beat = {"keep_alive_interval": 1, "keep_alive_max_attempt": 30}
    a, b = nodes.make(**beat), nodes.make(**beat)
    nodes.join(a, b)
    before = state_of(nodes.port).last_heartbeats
    assert len(before) == 2
    until(lambda: all(when > before[node]
                      for node, when in state_of(nodes.port).last_heartbeats.items()))


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_that_cannot_be_read(muster: Any, kind: str) -> None:
    """On a store of torch's: ours takes no such state."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    node = Nodes(muster, kind, store.port).make()
    store.set("torch.rendezvous.job", "bm8gcGlja2xl")
    with pytest.raises(RendezvousStateError, match="The rendezvous state is corrupt"):
        node.next_rendezvous()


def test_nobody_there(nodes: Nodes) -> None:
    with pytest.raises(RendezvousConnectionError) as e:
        nodes.make(endpoint=f"127.0.0.1:{free_port()}", read_timeout=1,
                   join_timeout=2).next_rendezvous()
    if nodes.kind == "muster":
        assert "127.0.0.1" in str(e.value)


@pytest.mark.parametrize("kind", KINDS)
def test_the_store_is_gone(muster: Any, kind: str) -> None:
    with muster.Store("127.0.0.1", 0, serve=True) as server:
        nodes = Nodes(muster, kind, server.port)
        node = nodes.make(1, close_timeout=2, join_timeout=2)
        nodes.join(node)
    with pytest.raises((RendezvousConnectionError, RendezvousTimeoutError)):
        node.set_closed()
    assert node.shutdown() is False


def test_after_shutdown(nodes: Nodes) -> None:
    node = nodes.make(1)
    nodes.join(node)
    assert node.shutdown() is True
    assert node.is_closed() is True and node.num_nodes_waiting() == 0
    with pytest.raises(RendezvousClosedError):
        node.next_rendezvous()
    node.set_closed()
    assert node.shutdown() is True


@pytest.mark.parametrize(("more", "says"), [
    ({"join_timeout": "soon"}, "'join_timeout' does not represent a valid integer value"),
    ({"join_timeout": -1}, "join timeout (-1 day, 23:59:59) must be positive"),
    ({"is_host": "perhaps"}, "'is_host' does not represent a valid boolean value"),
    ({"read_timeout": 0}, "The read timeout must be a positive integer."),
    ({"endpoint": "host:port"}, "must be an integer between 0 and 65536"),
    ({"endpoint": "a b:1"}, "must be a dot-separated list of labels"),
])
def test_wrong_parameters(nodes: Nodes, more: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match="(?s).*") as e:
        nodes.make(**more)
    assert says in str(e.value)


def test_an_interrupt_ends_a_join_and_hands_the_place_back(muster: Any, port: int) -> None:
    nodes = Nodes(muster, "muster", port)
    node = nodes.make(2)

    def on_alarm(*_: object) -> None:
        raise InterruptedError("enough")

    before = signal.signal(signal.SIGALRM, on_alarm)
    watch = threading.Thread(target=lambda: (
        until(lambda: (s := state_of(port)) and s.participants),
        signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)))
    watch.start()
    try:
        with pytest.raises(InterruptedError):
            node.next_rendezvous()
    finally:
        watch.join()
        signal.signal(signal.SIGALRM, before)
    until(lambda: not state_of(port).participants)


def backend_of(muster: Any, kind: str, port: int, run_id: str = "run") -> Any:
    if kind == "muster":
        return muster.torch.MusterRendezvousBackend(muster.Store("127.0.0.1", port), run_id)
    if kind == "c10d":
        return C10dRendezvousBackend(TCPStore("127.0.0.1", port, is_master=False), run_id)
    return muster.torch.create_backend(params_of(kind, port, run_id))[0]


def params_of(kind: str, port: int, run_id: str = "run") -> RendezvousParameters:
    more = {"is_host": "false"} if kind == "muster-c10d" else {}
    return RendezvousParameters(kind, f"127.0.0.1:{port}", run_id, 2, 2, local_addr="127.0.0.1",
                                **more)


@pytest.fixture(scope="module")
def etcd(tmp_path_factory) -> Iterator[etcd_server.Etcd]:
    with etcd_server.Etcd(tmp_path_factory.mktemp("etcd")) as server:
        yield server


def fresh_run() -> str:
    """The tests of this file share an etcd."""
    return f"run{next(RUNS)}"


@pytest.fixture(params=[*KINDS, "muster-c10d", "muster-etcd-v2", "muster-etcd-v3"])
def backend(request, muster: Any) -> Any:
    kind, run_id = request.param, fresh_run()
    port = request.getfixturevalue("etcd").port if "etcd" in kind else request.getfixturevalue("port")
    made = backend_of(muster, kind, port, run_id)
    assert made.name == kind
    made.asked = params_of(kind, port, run_id)
    return made


def test_a_new_backend_has_no_state(backend: Any) -> None:
    assert backend.get_state() is None


@pytest.mark.parametrize("token", [b"no token of yours", "text", 7, object()])
def test_a_token_for_nothing_writes_nothing(backend: Any, token: Any) -> None:
    assert backend.set_state(b"x", token) is None
    assert backend.get_state() is None


@pytest.mark.parametrize("token", [None, b"", 0, ""])
def test_no_token_is_for_the_first_write_only(backend: Any, token: Any) -> None:
    state, first, won = backend.set_state(b"one", token)
    assert (state, won) == (b"one", True) and first
    assert backend.get_state() == (b"one", first)
    assert backend.set_state(b"two", token) == (b"one", first, False)


@pytest.mark.parametrize("stale", [False, True])
def test_a_write_needs_the_token_of_what_it_replaces(backend: Any, stale: bool) -> None:
    _, first, _ = backend.set_state(b"one")
    state, second, won = backend.set_state(b"two", first)
    assert (state, won) == (b"two", True) and second != first
    wrong = first if stale else "no token"
    assert backend.set_state(b"three", wrong) == (b"two", second, False)
    assert backend.set_state(b"three", second)[2] is True
    assert backend.get_state()[0] == b"three"


def test_any_bytes_are_a_state(backend: Any) -> None:
    for state in (b"\0", bytes(range(256)), b"x" * 300_000):
        held = backend.get_state()
        assert backend.set_state(state, held[1] if held else None)[::2] == (state, True)
        assert backend.get_state()[0] == state


def put(asked: RendezvousParameters, value: str) -> None:
    """Writes the value itself where the backend keeps it."""
    at = f"http://{asked.endpoint}"
    if asked.backend == "muster-etcd-v3":
        key, text = (base64.b64encode(t.encode()).decode()
                     for t in (f"/muster/{asked.run_id}/state", value))
        urllib.request.urlopen(f"{at}/v3/kv/put", json.dumps({"key": key, "value": text}).encode()).close()
    elif asked.backend == "muster-etcd-v2":
        urllib.request.urlopen(urllib.request.Request(
            f"{at}/v2/keys/torch/elastic/rendezvous/{asked.run_id}", method="PUT",
            data=urllib.parse.urlencode({"value": value}).encode())).close()
    else:
        port = int(asked.endpoint.rpartition(":")[2])
        TCPStore("127.0.0.1", port, is_master=False).set(f"torch.rendezvous.{asked.run_id}", value)


def test_a_state_object_that_is_corrupt(backend: Any) -> None:
    put(backend.asked, "YQ=")
    with pytest.raises(RendezvousStateError, match="The state object is corrupt"):
        backend.get_state()
    with pytest.raises(RendezvousStateError, match="The state object is corrupt"):
        backend.set_state(b"x")


def test_of_concurrent_writes_each_counts_once(muster: Any, port: int) -> None:
    """Four writers of both kinds, each raising one number eight times."""

    def count(kind: str, who: int) -> None:
        mine, wins = backend_of(muster, kind, port), 0
        while wins < 8:
            held = mine.get_state()
            so_far = int(held[0].split()[0]) if held else 0
            # Signed: another's equal bytes would look like a win of one's own.
            signed = b"%d by %d, %d" % (so_far + 1, who, wins)
            answer = mine.set_state(signed, held[1] if held else None)
            wins += bool(answer and answer[2])

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(count, KINDS[who % 2], who) for who in range(4)]:
            done.result(100)
    assert int(backend_of(muster, "c10d", port).get_state()[0].split()[0]) == 32


def test_a_backend_without_a_run_id(muster: Any) -> None:
    with muster.Store.hash() as store, pytest.raises(ValueError, match="The run id must be"):
        muster.torch.MusterRendezvousBackend(store, "")


def test_a_backend_whose_store_is_gone(muster: Any) -> None:
    server = muster.Store("127.0.0.1", 0, serve=True)
    client = muster.Store("127.0.0.1", server.port, timeout=2)
    backend = muster.torch.MusterRendezvousBackend(client, "run")
    server.close()
    for question in (backend.get_state, lambda: backend.set_state(b"x")):
        with pytest.raises(RendezvousConnectionError, match="connection to the C10d store .*127"):
            question()


def test_torchs_handler_on_our_backend_and_on_its_own_meet(muster: Any, port: int) -> None:
    """For code that builds handlers itself."""
    made = [DynamicRendezvousHandler.from_backend(
        "run", TCPStore("127.0.0.1", port, is_master=False), backend_of(muster, kind, port), 2, 2,
        local_addr="127.0.0.1") for kind in KINDS]
    with ThreadPoolExecutor(2) as threads:
        one, other = [f.result(60) for f in [threads.submit(h.next_rendezvous) for h in made]]
    assert {one.rank, other.rank} == {0, 1}
    assert made[0].get_backend() == "muster"
    assert all(h.shutdown() for h in made)


@pytest.mark.parametrize("kind, other", [("c10d", "torch"), ("etcd-v2", "torch"), ("etcd-v3", "muster")])
def test_torchs_handler_on_create_backend(muster: Any, request, kind: str, other: str) -> None:
    """It meets torch's own nodes and ours, at a real etcd too, and its store is theirs."""
    port = request.getfixturevalue("etcd" if "etcd" in kind else "port")
    asked = params_of(f"muster-{kind}", getattr(port, "port", port), fresh_run())
    backend, store = muster.torch.create_backend(asked)
    made = [dynamic_rendezvous.create_handler(store, backend, asked)]
    # Another address: torch and we count a process's nodes each for itself.
    theirs = RendezvousParameters(kind, asked.endpoint, asked.run_id, 2, 2, local_addr="localhost",
                                  **asked.config)
    if other == "torch":
        make = etcd_rendezvous_backend if kind == "etcd-v2" else c10d_rendezvous_backend
        its_backend, its_store = make.create_backend(theirs)
        made.append(dynamic_rendezvous.create_handler(its_store, its_backend, theirs))
    else:
        made.append(muster.torch.create_handler(theirs))
    assert made[0].get_backend() == f"muster-{kind}"
    for number in range(2):  # and once more, as after a failure
        with ThreadPoolExecutor(2) as threads:
            joined = [f.result(60) for f in [threads.submit(h.next_rendezvous) for h in made]]
        assert {j.rank for j in joined} == {0, 1}
        assert joined[0].bootstrap_store_info == joined[1].bootstrap_store_info
        joined[0].store.set(f"key{number}", "value")
        assert joined[1].store.get(f"key{number}") == b"value"
    assert all(h.shutdown() for h in made)


def test_a_store_outlives_the_backend_it_was_made_from(muster: Any, etcd: etcd_server.Etcd) -> None:
    _, store = muster.torch.create_backend(params_of("muster-etcd-v3", etcd.port, fresh_run()))
    gc.collect()
    store.set("key", "value")
    assert store.clone().get("key") == b"value"


def test_backends_that_keep_no_state(muster: Any) -> None:
    for name, words in (("muster-static", "keeps no state of its own"), ("zookeeper", "not one of")):
        with pytest.raises(ValueError, match=words):
            muster.torch.create_backend(params_of(name, 1))
    with pytest.raises(RendezvousConnectionError, match="connection to etcd has failed"):
        muster.torch.create_backend(RendezvousParameters("muster-etcd-v3", "127.0.0.1:1", "run", 1, 2,
                                                         read_timeout="1"))
