"""Our client, through the public C API, on torch's two servers and on ours, and on
servers that misbehave."""
from __future__ import annotations

import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest
import torch.distributed as dist

from fake_store import HELLO, Fake, Peer
from ports import free_port
from store_cli import BUILD, CLI, Cli, StoreError


class Ours:
    """muster store."""

    def __init__(self, *args: str):
        self.proc = subprocess.Popen(
            [BUILD / "muster", "store", "--bind", "127.0.0.1", "--port", "0", *args],
            stdout=subprocess.PIPE,
        )
        line = self.proc.stdout.readline().decode()
        self.port = int(line.rsplit(":", 1)[1])

    def close(self) -> None:
        self.proc.terminate()
        self.proc.wait(30)
        self.proc.stdout.close()


class Torchs:
    def __init__(self, libuv: bool):
        self.store = dist.TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=libuv,
            timeout=timedelta(seconds=30),
        )
        self.port = self.store.port

    def close(self) -> None:
        self.store = None


KINDS = {"uv": lambda: Torchs(True), "legacy": lambda: Torchs(False), "ours": Ours}


@pytest.fixture(scope="module", params=KINDS)
def server(request):
    s = KINDS[request.param]()
    s.kind = request.param
    yield s
    s.close()


@pytest.fixture
def cli(server):
    with Cli("tcp", "127.0.0.1", server.port, 20000) as c:
        yield c


@pytest.fixture
def key(request):
    return request.node.name.replace("[", ".").replace("]", "") + "/"


def fails(code: str, *texts: str):
    class Check:
        def __enter__(self):
            return self

        def __exit__(self, kind, e, tb):
            assert isinstance(e, StoreError), f"wanted {code}, got {e!r}"
            assert e.code == "MUSTER_" + code, e
            for t in texts:
                assert t in e.text, e
            return True

    return Check()


# ---- all operations, on all servers ----


def test_values(cli, key):
    for value in (b"v", b"", bytes(range(256)), b"x" * 100000):
        cli.call("set", key + "k", value)
        assert cli.get(key + "k") == value
    assert cli.call("delete", key + "k") == [b"1"]
    assert cli.call("delete", key + "k") == [b"0"]
    cli.call("set", "", "the empty key")
    assert cli.get("") == b"the empty key"


def test_numbers(cli, key):
    assert cli.add(key + "n", 5) == 5
    assert cli.add(key + "n", -7) == -2
    assert cli.get(key + "n") == b"-2"
    cli.call("set", key + "n", 2**63 - 1)
    assert cli.add(key + "n", 1) == -(2**63)


def test_compare_set(cli, key):
    assert cli.call("cas", key, "", "A") == [b"A"]
    assert cli.call("cas", key, "X", "C") == [b"A"]
    assert cli.call("cas", key, "A", "B") == [b"B"]
    assert cli.call("cas", key + "missing", "Z", "C") == [b"Z"]
    assert cli.call("check", key + "missing") == [b"0"]


def test_append(cli, key):
    cli.call("append", key, "ab")
    cli.call("append", key, b"\x00cd")
    assert cli.get(key) == b"ab\x00cd"


def test_check_and_wait(cli, key):
    a, b = key + "a", key + "b"
    cli.call("set", a, 1)
    assert cli.call("check", a) == [b"1"]
    assert cli.call("check", a, b) == [b"0"]
    assert cli.call("check") == [b"1"]
    cli.call("wait", 20000)
    with fails("ETIMEDOUT", f"wait timeout after 50ms, keys: /{a}, /{b}"):
        cli.call("wait", 50, a, b)
    cli.call("set", b, 2)
    cli.call("wait", 20000, a, b, a)


def test_many(cli, key):
    keys = [f"{key}{i}" for i in range(1000)]
    cli.call("mset", *[w for k in keys for w in (k, k + "=")])
    assert cli.call("mget", *keys) == [(k + "=").encode() for k in keys]
    assert cli.call("mget") == []
    cli.call("mset")
    with fails("ETIMEDOUT", "wait timeout after 50ms"):
        cli.call("timeout", 50)
        cli.call("mget", keys[0], key + "missing")
    cli.call("timeout", 20000)
    listed = cli.call("list")
    assert {k.encode() for k in keys} <= set(listed)
    assert int(cli.call("num")[0]) >= len(listed)


def test_waits_end_when_others_write(server, cli, key):
    """Waiting in one process, writing in another: torch's and ours."""
    torch_client = dist.TCPStore("127.0.0.1", server.port, timeout=timedelta(seconds=30))
    for i, write in enumerate(
        (
            lambda k: torch_client.set(k, "v"),
            lambda k: torch_client.add(k, 1),
            lambda k: torch_client.append(k, "v"),
            lambda k: torch_client.multi_set([k], ["v"]),
        )
    ):
        cli.send("get", f"{key}{i}")
        write(f"{key}{i}")
        assert cli.answer() in ([b"v"], [b"1"])
    for i in range(4):
        assert torch_client.get(f"{key}{i}") in (b"v", b"1")
    cli.call("set", key + "ours", "from C")
    assert torch_client.get(key + "ours") == b"from C"


def test_barrier(server, cli, key):
    cli.call("barrier", key + "one", 1, 20000)
    with fails("ETIMEDOUT", f"barrier timeout after 50ms, key: {key}two"):
        cli.call("barrier", key + "two", 2, 50)
    with Cli("tcp", "localhost", server.port, 20000) as other:
        cli.send("barrier", key + "three", 2, 20000)
        other.call("barrier", key + "three", 2, 20000)
        cli.answer()


def test_prefix(server, cli, key):
    """Nested as torch nests, and the generic barrier between a torch PrefixStore and
    ours."""
    torch_client = dist.TCPStore("127.0.0.1", server.port, timeout=timedelta(seconds=30))
    theirs = dist.PrefixStore("pa", dist.PrefixStore(key, torch_client))
    cli.call("prefix", key)
    cli.call("prefix", "pa")
    cli.call("set", "k", "v")
    assert theirs.get("k") == b"v"
    assert torch_client.get(f"{key}/pa/k") == b"v"
    theirs.set("t", "w")
    assert cli.get("t") == b"w"
    assert sorted(cli.call("list")) == [b"k", b"t"]
    cli.send("barrier", "b", 2, 20000)
    theirs.barrier("b", 2, timedelta(seconds=20))
    cli.answer()
    cli.call("clone")
    assert cli.get("t") == b"w"
    cli.call("up")
    cli.call("up")
    cli.call("up")
    assert cli.get(f"{key}/pa/t") == b"w"


def test_queues(server, cli, key):
    if server.kind == "legacy":
        with fails("EHANGUP", "QUEUE_LEN", "use_libuv=True"):
            cli.call("len", key)
        return
    assert cli.call("len", key) == [b"0"]
    with fails("EEMPTY", "queue is empty"):
        cli.call("pop", key, 0)
    cli.call("push", key, "item1")
    cli.call("push", key, b"\x00")
    assert cli.call("len", key) == [b"2"]
    assert cli.call("pop", key, 1) == [b"item1"]
    assert cli.call("pop", key, 0) == [b"\x00"]
    cli.call("timeout", 50)
    with fails("ETIMEDOUT", "wait timeout after 50ms"):
        cli.call("pop", key, 1)
    cli.call("timeout", 20000)
    cli.send("pop", key, 1)
    with Cli("tcp", "127.0.0.1", server.port, 20000) as other:
        other.call("push", key, "late")
    assert cli.answer() == [b"late"]


def test_limits(server, cli, key):
    cli.call("big", key, 8 << 20)
    assert len(cli.get(key)) == 8 << 20
    with fails("EINVAL", "8388609 bytes", "at most 8388608"):
        cli.call("big", key, (8 << 20) + 1)
    cli.call("set", "k" * 8191, "v")
    with fails("EINVAL", "8193 bytes", "at most 8192"):
        cli.call("set", "k" * 8192, "v")
    assert cli.get("k" * 8191) == b"v"


def test_not_a_number(server, cli, key):
    cli.call("set", key, "text")
    with fails("EHANGUP", f"ADD of /{key}", "is not a number"):
        cli.call("add", key, 1)
    with fails("EHANGUP", "GET of /x"):  # and from then on
        cli.get("x")


def test_workers_are_counted(server):
    """ADD of init/ without a slash: torch's master and ours see each other's workers."""
    before = int(dist.TCPStore("127.0.0.1", server.port, 1000, False).num_keys() > 0)
    assert before == 1
    with Cli("tcp", "127.0.0.1", server.port, 20000, 1000) as c:
        assert c.call("check", "init/") == [b"0"]  # as torch hides it


def test_our_master_waits_for_torch_workers():
    port = free_port()
    with Cli("serve", "127.0.0.1", port, 30000, 3, wait=False) as master:
        workers = [
            dist.TCPStore("127.0.0.1", port, 3, False, timeout=timedelta(seconds=30))
            for _ in range(2)
        ]
        master.ready()
        workers[0].set("k", "v")
        assert master.get("k") == b"v"
    with pytest.raises(dist.DistNetworkError):
        workers[1].get("k")


def test_our_master_gives_up():
    with fails("ETIMEDOUT", "Timed out after 1 seconds waiting for clients. 1/2 clients"):
        Cli("serve", "127.0.0.1", 0, 300, 2)


def test_a_taken_port():
    with Cli("serve", "127.0.0.1", 0, 10000) as first:
        port = int(first.call("port")[0])
        with fails("EINUSE", str(port)):
            Cli("serve", "127.0.0.1", port, 10000)


# ---- servers that misbehave: the right error, in time ----


def silent(peer: Peer, n: int) -> None:
    peer.until_closed()


def test_silent_after_accept():
    with Fake(silent) as f, fails(
        "ETIMEDOUT", "timed out after 700ms", "does not answer", f"127.0.0.1:{f.port}"
    ):
        Cli("tcp", "127.0.0.1", f.port, 700)


def test_silent_after_wait():
    """Neither WAIT nor CANCEL_WAIT is answered: the call ends in time, the next ones too,
    and when none is left that has time the connection is given up for good."""

    def script(peer: Peer, n: int) -> None:
        peer.greet()
        assert peer.until_closed().endswith(b"/k\x0c")

    with Fake(script) as f, Cli("tcp", "127.0.0.1", f.port, 10000) as c:
        with fails("ETIMEDOUT", "wait timeout after 200ms, keys: /k"):
            c.call("wait", 200, "k")
        c.call("timeout", 200)
        with fails("ETIMEDOUT", "GET of /x timed out", "another call"):
            c.get("x")
        c.call("timeout", 11000)
        with fails("ETIMEDOUT", "GET of /x timed out", "another call"):
            c.get("x")
        for _ in range(2):
            with fails("EHANGUP", "given up", "did not answer CANCEL_WAIT"):
                c.get("x")


def test_an_answer_to_a_cancel_that_is_late():
    """By more than the ten seconds after which nobody would wait for it: the call that
    does has its answer."""

    def script(peer: Peer, n: int) -> None:
        peer.greet()
        assert peer.read(1) == b"\x06" and peer.keys() == [b"/k"] and peer.read(1) == b"\x0c"
        time.sleep(11)
        peer.write(b"\x01")
        assert peer.read(1) == b"\x06" and peer.keys() == [b"/x"]
        peer.write(b"\x00")
        assert peer.read(1) == b"\x03" and peer.bytes() == b"/x"
        peer.write(struct.pack("<Q", 1) + b"v")
        peer.until_closed()

    with Fake(script) as f, Cli("tcp", "127.0.0.1", f.port, 20000) as c:
        with fails("ETIMEDOUT", "wait timeout after 200ms, keys: /k"):
            c.call("wait", 200, "k")
        assert c.get("x") == b"v"


def test_silent_after_add():
    """A late answer is dropped, and the connection stays in step."""
    go = threading.Event()

    def script(peer: Peer, n: int) -> None:
        peer.greet()
        for i in range(2):
            assert peer.read(1) == b"\x04"
            peer.bytes()
            (delta,) = struct.unpack("<q", peer.read(8))
            go.wait(20)
            peer.write(struct.pack("<q", 100 * delta))
        peer.until_closed()

    with Fake(script) as f, Cli("tcp", "127.0.0.1", f.port, 10000) as c:
        c.call("timeout", 200)
        with fails("ETIMEDOUT", "ADD of /n timed out after 200 ms"):
            c.add("n", 1)
        c.call("timeout", 20000)
        c.send("add", "n", 2)
        go.set()
        assert c.answer() == [b"200"]


def test_cancel_race():
    """00 01: the wait completed while the cancel was under way. Still a timeout, and in
    step afterwards."""

    def script(peer: Peer, n: int) -> None:
        peer.greet()
        for answer in (b"\x00\x01", b"\x01"):
            assert peer.read(1) == b"\x06"
            assert peer.keys() == [b"/k"]
            assert peer.read(1) == b"\x0c"
            peer.write(answer)
        assert peer.read(1) == b"\x07"
        peer.write(struct.pack("<q", 42))
        peer.until_closed()

    with Fake(script) as f, Cli("tcp", "127.0.0.1", f.port, 10000) as c:
        for _ in range(2):
            with fails("ETIMEDOUT", "wait timeout after 100ms, keys: /k"):
                c.call("wait", 100, "k")
        assert c.call("num") == [b"42"]


@pytest.mark.parametrize("answer", [b"\x02", b"\x00\x00", b"\x00\x07"])
def test_nonsense_after_cancel(answer):
    def script(peer: Peer, n: int) -> None:
        peer.greet()
        peer.read(1 + 8 + 8 + 2 + 1)
        peer.write(answer)
        peer.until_closed()

    with Fake(script) as f, Cli("tcp", "127.0.0.1", f.port, 10000) as c:
        with fails("ETIMEDOUT"):
            c.call("wait", 50, "k")
        with fails("EPROTO", "wait_canceled response is expected"):
            c.call("num")


def test_the_nonce_is_the_process_id():
    """As torch's: people find the client of a connection by it."""
    seen = []

    def script(peer: Peer, n: int) -> None:
        hello = peer.read(10)
        seen.append(int.from_bytes(hello[6:], "little"))
        peer.write(hello[6:])
        peer.until_closed()

    with Fake(script) as f, Cli("tcp", "127.0.0.1", f.port, 20000) as c:
        assert seen == [c.proc.pid]


def test_wrong_nonce_once():
    def script(peer: Peer, n: int) -> None:
        if n == 0:
            peer.read(10)
            peer.write(b"\x01\x02\x03\x04")
        else:
            peer.greet()
        peer.until_closed()

    with Fake(script) as f, Cli("tcp", "127.0.0.1", f.port, 20000):
        assert f.connections == 2


def test_wrong_nonce_always():
    """Not for 300 s: a service that answers so is not a store."""

    def script(peer: Peer, n: int) -> None:
        peer.read(10)
        peer.write(b"\x01\x02\x03\x04")
        peer.until_closed()

    with Fake(script) as f, fails("ENOTSTORE", "Ping failed", "Got: 67305985", "port"):
        Cli("tcp", "127.0.0.1", f.port, 300000)


def test_a_web_server():
    def script(peer: Peer, n: int) -> None:
        peer.read(1)
        peer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with Fake(script) as f, fails("ENOTSTORE", "a web server answers there"):
        Cli("tcp", "127.0.0.1", f.port, 300000)


@pytest.mark.parametrize("how", ["close", "reset"])
def test_closed_after_validate(how):
    def script(peer: Peer, n: int) -> None:
        peer.read(5)
        if how == "reset":
            peer.reset()

    with Fake(script) as f, fails("EHANGUP", "without an answer", f"127.0.0.1:{f.port}"):
        Cli("tcp", "127.0.0.1", f.port, 1500)


@pytest.mark.parametrize(
    "call, reply, text",
    [
        (("get", "k"), b"\x01", "Stop_waiting response is expected"),
        (("get", "k"), b"\x00" + b"\xff" * 8, "announces 18446744073709551615 bytes"),
        (("check", "k"), b"\x05", "ready or not_ready response expected"),
        (("barrier", "b", 2, 20000), b"\x09", "Stop_waiting response is expected"),
        (("list",), b"\xff" * 8, "elements"),
        (("pop", "q", 0), b"\xff" * 8, "queue length of -1"),
        (("mget", "a", "b"), b"\x00" + b"\x00" * 15 + b"\x01" + b"\x00" * 8, "announces"),
        (("cas", "k", "", "v"), struct.pack("<Q", 1 << 40), "announces"),
        (("add", "k", 1), b"\x01" + b"\x00" * 7 + b"more", "answer no request"),
    ],
)
def test_garbage_answers(call, reply, text):
    def script(peer: Peer, n: int) -> None:
        peer.greet()
        peer.conn.recv(1)
        peer.write(reply)
        peer.until_closed()

    with Fake(script) as f, Cli("tcp", "127.0.0.1", f.port, 20000) as c:
        with fails("EPROTO", text, f"127.0.0.1:{f.port}"):
            c.call(*call)
            c.call("num")


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize(
    "call", [("get", "k"), ("add", "n", 1), ("barrier", "b", 2, 20000), ("list",)]
)
def test_hangs_up_in_the_middle(call, how):
    def script(peer: Peer, n: int) -> None:
        peer.greet()
        peer.conn.recv(1)
        if how == "reset":
            peer.reset()

    with Fake(script) as f, Cli("tcp", "127.0.0.1", f.port, 20000) as c:
        with fails("EHANGUP", f"127.0.0.1:{f.port}"):
            c.call(*call)
        with fails("EHANGUP"):
            c.call("num")


@pytest.mark.parametrize("how", ["close", "reset"])
def test_hangs_up_while_idle(how):
    """The next call says so; and no SIGPIPE ends the program."""
    gone = threading.Event()

    def script(peer: Peer, n: int) -> None:
        peer.greet()
        if how == "reset":
            peer.reset()
        peer.conn.close()
        gone.set()

    with Fake(script) as f, Cli("tcp", "127.0.0.1", f.port, 20000) as c:
        gone.wait(20)
        for call in (("add", "n", 1), ("set", "k", "v")):
            with fails("EHANGUP", f"127.0.0.1:{f.port}"):
                c.call(*call)


def test_cancel_is_answered_while_nobody_looks():
    """A caller that comes back after long finds the connection in step."""

    def script(peer: Peer, n: int) -> None:
        peer.greet()
        assert peer.read(1) == b"\x06" and peer.keys() == [b"/k"]
        assert peer.read(1) == b"\x0c"
        peer.write(b"\x01")
        assert peer.read(1) == b"\x07"
        peer.write(struct.pack("<q", 42))
        peer.until_closed()

    with Fake(script) as f, Cli("tcp", "127.0.0.1", f.port, 20000) as c:
        with fails("ETIMEDOUT"):
            c.call("wait", 50, "k")
        time.sleep(10.5)
        assert c.call("num") == [b"42"]


def test_answers_byte_by_byte(key):
    def script(peer: Peer, n: int) -> None:
        hello = peer.read(10)
        drip(peer, hello[6:])
        assert peer.read(1) == b"\x06" and peer.keys() == [b"/a", b"/b"]
        drip(peer, b"\x00")
        assert peer.read(1) == b"\x0a" and peer.keys() == [b"/a", b"/b"]
        drip(peer, struct.pack("<Q", 3) + b"one" + struct.pack("<Q", 0))
        assert peer.read(1) == b"\x11"
        drip(peer, struct.pack("<QQ2sQ5s", 2, 2, b"/k", 5, b"init/"))
        peer.until_closed()

    def drip(peer: Peer, data: bytes) -> None:
        for i in range(len(data)):
            peer.write(data[i : i + 1])
            time.sleep(0.002)

    with Fake(script) as f, Cli("tcp", "127.0.0.1", f.port, 20000) as c:
        assert c.call("mget", "a", "b") == [b"one", b""]
        assert c.call("list") == [b"k"]


@pytest.mark.parametrize("pieces", [False, True])
def test_servers_without_ping(pieces):
    """PyTorch 2.2 to 2.4 hangs up on PING: it is then asked for its number of keys."""

    def script(peer: Peer, n: int) -> None:
        assert peer.read(5) == HELLO
        op = peer.read(1)
        if n == 0:
            assert op == b"\x0d"
            return
        assert op == b"\x07"
        answer = struct.pack("<q", 3)
        if pieces:
            peer.write(answer[:3])
            time.sleep(0.05)
        peer.write(answer[3 if pieces else 0 :])
        assert peer.read(1) == b"\x04" and peer.bytes() == b"/n"
        peer.write(peer.read(8))
        peer.until_closed()

    with Fake(script) as f, Cli("tcp", "127.0.0.1", f.port, 20000) as c:
        assert c.add("n", 7) == 7
        assert f.connections == 2


def test_greeting_is_one_write():
    seen = []

    def script(peer: Peer, n: int) -> None:
        seen.append(peer.conn.recv(100))
        peer.write(seen[0][6:])
        peer.until_closed()

    with Fake(script) as f, Cli("tcp", "127.0.0.1", f.port, 20000):
        assert len(seen[0]) == 10


def test_server_that_does_not_read():
    """A large value to a server that reads nothing: the call ends in time."""

    def script(peer: Peer, n: int) -> None:
        peer.greet()
        stop.wait(60)

    stop = threading.Event()
    with Fake(script) as f, Cli("tcp", "127.0.0.1", f.port, 20000) as c:
        c.call("timeout", 500)
        with fails("ETIMEDOUT", "SET of /k timed out after 500 ms"):
            c.call("big", "k", 8 << 20)
        stop.set()


@pytest.mark.parametrize(
    "call", [("get", "k"), ("wait", 20000, "k"), ("barrier", "b", 2, 20000), ("pop", "q", 1)]
)
def test_killed_while_waiting(call):
    server = Ours()
    with Cli("tcp", "127.0.0.1", server.port, 20000) as c:
        c.add("n", 1)
        c.send(*call)
        with Cli("tcp", "127.0.0.1", server.port, 20000) as other:
            other.add("n", 1)  # the server has seen what came before
        server.proc.kill()
        with fails("EHANGUP", "Did the remote server shutdown or crash"):
            c.answer()
    server.close()


def test_stopped_server():
    """Calls end in time; what was on its way counts once the server goes on, and the
    connection is in step."""
    server = Ours()
    with Cli("tcp", "127.0.0.1", server.port, 20000) as c:
        assert c.add("n", 1) == 1
        server.proc.send_signal(signal.SIGSTOP)
        c.call("timeout", 300)
        with fails("ETIMEDOUT", "ADD of /n timed out after 300 ms"):
            c.add("n", 1)
        with fails("ETIMEDOUT", "wait timeout after 300ms, keys: /n"):
            c.get("n")
        with fails("ETIMEDOUT", "does not answer"):
            Cli("tcp", "127.0.0.1", server.port, 500)
        server.proc.send_signal(signal.SIGCONT)
        c.call("timeout", 20000)
        assert c.add("n", 1) == 3
        assert c.get("n") == b"3"
    server.close()


# ---- finding the server ----


def test_refused():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
        with fails(
            "EREFUSED", "timed out after 1200ms", f"127.0.0.1:{port}", "nothing listens"
        ):
            Cli("tcp", "127.0.0.1", port, 1200)


def test_refused_then_listening():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
        c = Cli("tcp", "127.0.0.1", port, 30000, wait=False)
        time.sleep(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    with c:
        c.ready()
        c.call("set", "k", "v")
        assert store.get("k") == b"v"


def test_unresolvable():
    with fails("ERESOLVE", "nosuchhost.invalid", "does not resolve"):
        Cli("tcp", "nosuchhost.invalid", 29500, 800)


def test_unreachable():
    """A network without a route, in a name space without any but its own loopback."""
    ns = f"muster-{time.monotonic_ns()}"
    subprocess.run(["ip", "netns", "add", ns], check=True)
    try:
        out = subprocess.run(
            ["ip", "netns", "exec", ns, CLI,
             "tcp", "192.0.2.1", "29500", "800"],
            capture_output=True, text=True, timeout=60,
        ).stdout
    finally:
        subprocess.run(["ip", "netns", "delete", ns], check=True)
    assert out.startswith("err MUSTER_EUNREACH"), out
    assert "192.0.2.1:29500" in out and "routes" in out


def test_not_connected_to_itself():
    """Where clients get the port that nobody listens on, TCP connects them to themselves:
    that is as good as refused."""
    ns = f"muster-{time.monotonic_ns()}"
    subprocess.run(["ip", "netns", "add", ns], check=True)
    inside = ["ip", "netns", "exec", ns]
    try:
        subprocess.run([*inside, "ip", "link", "set", "lo", "up"], check=True)
        subprocess.run([*inside, "sysctl", "-qw", "net.ipv4.ip_local_port_range=30000 30001"],
                       check=True)
        out = subprocess.run(
            [*inside, CLI, "tcp", "127.0.0.1", "30000", "2500"],
            capture_output=True, text=True, timeout=60,
        ).stdout
    finally:
        subprocess.run(["ip", "netns", "delete", ns], check=True)
    assert out.startswith("err MUSTER_EREFUSED"), out


@pytest.mark.parametrize("listen", ["127.0.0.1", "::1", "dual"])
@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1"])
def test_localhost(listen, name):
    """By any of its names, whichever family the server listens on."""
    server = socket.socket(socket.AF_INET if listen == "127.0.0.1" else socket.AF_INET6)
    if listen != "127.0.0.1":
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, listen == "::1")
    server.bind(("::" if listen == "dual" else listen, 0))
    store = dist.TCPStore(
        "127.0.0.1" if listen != "::1" else "::1", server.getsockname()[1], is_master=True,
        wait_for_workers=False, master_listen_fd=server.detach(),
    )
    meet = listen in (name, "dual") or name == "localhost"
    if not meet:
        with fails("EREFUSED"):
            Cli("tcp", name, store.port, 300)
        return
    with Cli("tcp", name, store.port, 20000) as c:
        c.call("set", "k", "v")
        assert store.get("k") == b"v"


def test_ipv6_switched_off():
    ns = f"muster-{time.monotonic_ns()}"
    subprocess.run(["ip", "netns", "add", ns], check=True)
    inside = ["ip", "netns", "exec", ns]
    try:
        subprocess.run([*inside, "ip", "link", "set", "lo", "up"], check=True)
        subprocess.run([*inside, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1"],
                       check=True)
        server = subprocess.Popen(
            [*inside, BUILD / "muster", "store", "--bind", "127.0.0.1", "--port", "29512"],
            stdout=subprocess.PIPE,
        )
        assert server.stdout.readline()
        out = subprocess.run(
            [*inside, CLI, "tcp", "localhost", "29512", "20000"],
            input="add n 1\n", capture_output=True, text=True, timeout=60,
        ).stdout
        server.terminate()
        server.wait(30)
        server.stdout.close()
    finally:
        subprocess.run(["ip", "netns", "delete", ns], check=True)
    assert out == "ok\nok 1\n"


def test_a_stranger_on_the_other_family():
    """::1 accepts and is silent; the store is on 127.0.0.1, same port: it is found."""
    for _ in range(20):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            other = socket.socket(socket.AF_INET6)
            other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                other.bind(("::1", port))
                break
            except OSError:
                other.close()
    other.listen()
    ours = subprocess.Popen(
        [BUILD / "muster", "store", "--bind", "127.0.0.1", "--port", str(port)],
        stdout=subprocess.PIPE,
    )
    try:
        assert ours.stdout.readline()
        with Cli("tcp", "localhost", port, 20000) as c:
            assert c.add("n", 1) == 1
    finally:
        ours.terminate()
        ours.wait(30)
        ours.stdout.close()
        other.close()


def test_dead_name_server():
    """A name server that never answers delays nothing that is numeric, and a name ends
    with the deadline, not with the resolver's patience."""
    ns = f"muster-{time.monotonic_ns()}"
    ip = ["ip", "-n", ns]
    run = lambda *a: subprocess.run([*a], check=True)  # noqa: E731
    run("ip", "netns", "add", ns)
    conf = f"/etc/netns/{ns}"
    try:
        run(*ip, "link", "set", "lo", "up")
        run("mkdir", "-p", conf)
        with open(conf + "/resolv.conf", "w") as out:
            out.write("nameserver 127.0.0.53\noptions timeout:30 attempts:3\n")
        inside = ["ip", "netns", "exec", ns]
        mute = subprocess.Popen(
            [*inside, sys.executable, "-c",
             "import socket, sys; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); "
             "s.bind(('127.0.0.53', 53)); print(flush=True); sys.stdin.read()"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        mute.stdout.readline()
        server = subprocess.Popen(
            [*inside, BUILD / "muster", "store", "--bind", "127.0.0.1", "--port", "29511"],
            stdout=subprocess.PIPE,
        )
        try:
            assert server.stdout.readline()
            cli = CLI
            out = subprocess.run(
                [*inside, cli, "tcp", "127.0.0.1", "29511", "20000"],
                input="add n 1\n", capture_output=True, text=True, timeout=20,
            ).stdout
            assert out == "ok\nok 1\n"
            out = subprocess.run(
                [*inside, cli, "tcp", "some.example", "29511", "700"],
                capture_output=True, text=True, timeout=20,
            ).stdout
            assert out.startswith("err MUSTER_ETIMEDOUT"), out
            assert "some.example has not been resolved" in out
        finally:
            server.terminate()
            server.wait(30)
            server.stdout.close()
            mute.communicate()
    finally:
        run("rm", "-rf", conf)
        run("ip", "netns", "delete", ns)
