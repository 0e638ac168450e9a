"""Whatever strangers send to the store server, its clients do not notice."""
from __future__ import annotations

import base64
import datetime
import os
import pickle
import random
import resource
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time

import pytest
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _NodeDesc, _RendezvousState

from patience import clock
from stores import (ADD, APPEND, CAS, GET, LIST, MAGIC, MGET, MSET, MUSTER, PING, PUSH,
                    SET, WAIT, LEFT, NEWS, REFUSED, WELCOME, Server, Wire, blob, hello, ours,
                    request, u64)

TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(range(200))


@pytest.fixture
def server():
    with ours() as s:
        yield s
        assert s.process.poll() is None, s.stderr()
        assert s.stop() == 0


@pytest.fixture
def client(server):
    """Somebody who counts all the while; every answer must be right and come soon."""
    stop = threading.Event()
    wire = Wire(server)
    slowest, count = 0.0, 0
    trouble = []

    def work():
        nonlocal slowest, count
        try:
            while not stop.is_set():
                start = time.monotonic()
                count += 1
                assert wire.add("/client", 1) == count
                slowest = max(slowest, time.monotonic() - start)
                time.sleep(0.001)
        except BaseException as e:  # noqa: BLE001
            trouble.append(e)

    t = threading.Thread(target=work, daemon=True)
    t.start()
    yield wire
    stop.set()
    t.join(60)
    assert not t.is_alive() and not trouble, trouble
    assert count > 0


def memory(pid: int) -> int:
    with open(f"/proc/{pid}/status") as f:
        return next(int(x.split()[1]) << 10 for x in f if x.startswith("VmRSS"))


@pytest.mark.parametrize("data, says", [
    (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "it looks like HTTP"),
    (b"POST /v1 HTTP/1.1\r\n", "it looks like HTTP"),
    (TLS_HELLO, "it looks like TLS"),
    (b"SSH-2.0-OpenSSH_9.2\r\n", "not a c10d store client"),
    (b"*1\r\n$4\r\nPING\r\n", "not a c10d store client"),
    (b"\xff" * 100, "not a c10d store client"),
])
def test_other_protocols(server, client, data, says):
    with Wire(server, b"") as c:
        c.raw(data)
        assert c.closed()
        address = "%s:%d" % c.sock.getsockname()
        log = server.wait_for_log(says)
    lines = [x for x in log.splitlines() if address in x]
    assert len(lines) == 1 and "at byte 0" in lines[0], log


def test_random_bytes(server, client):
    rng = random.Random(4)
    for i in range(300):
        hello = MAGIC if i % 2 else b""
        try:
            with Wire(server, hello) as c:
                c.raw(rng.randbytes(rng.randrange(1, 400)))
        except ConnectionError:
            pass


def test_requests_with_bits_flipped(server, client):
    rng = random.Random(5)
    good = MAGIC + b"".join([request(SET, "/a", "b"), request(ADD, "/n", 1), request(GET, "/a"),
                             request(WAIT, ["/a", "/zz"]), request(MGET, ["/a"]), b"\x0c\x11"])
    for _ in range(300):
        bad = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            bad[rng.randrange(5, len(bad))] ^= 1 << rng.randrange(8)
        try:
            with Wire(server, b"") as c:
                c.raw(bytes(bad[:rng.randrange(1, len(bad) + 1)]))
        except ConnectionError:
            pass


def test_truncated_requests(server, client):
    whole = request(SET, "/key", "x" * 100)
    held = []
    for n in range(1, len(whole)):
        c = Wire(server)
        c.raw(whole[:n])
        if n % 2:
            c.close()  # in the middle
        else:
            held.append((c, n))  # or never again, for now
    for c, n in held:
        c.raw(whole[n:])
        assert c.get("/key") == b"x" * 100
        c.close()


def test_announced_lengths_take_no_memory(server, client):
    before = memory(server.process.pid)
    conns = []
    for _ in range(200):
        c = Wire(server)
        c.raw(bytes([SET]) + blob("/k") + u64(8 << 20) + b"x")
        d = Wire(server)
        d.raw(bytes([WAIT]) + u64(131072) + blob("/k"))
        conns += [c, d]
    conns[0].set("/k", "v" * 0)  # more bytes of its value, in fact
    with Wire(server) as c:
        c.ping()
    assert memory(server.process.pid) - before < 8 << 20
    for c in conns:
        c.close()


def test_a_reader_that_stops():
    with ours("--max-unread", "32") as server, Wire(server) as other:
        value = os.urandom(8 << 20)
        other.set("/big", value)
        other.ping()
        with Wire(server) as c:
            c.sock.settimeout(60)
            try:
                for _ in range(50):
                    c.raw(request(GET, "/big"))
            except ConnectionError:
                pass
            address = "%s:%d" % c.sock.getsockname()
            log = server.wait_for_log("leaves its answers unread")
            assert address in log
            assert other.get("/big") == value
            other.ping()
            assert memory(server.process.pid) < 200 << 20


def test_a_slow_reader_gets_everything(server, client):
    value = os.urandom(1 << 20)
    with Wire(server) as c:
        c.set("/big", value)
        c.raw(request(GET, "/big") * 40)
        time.sleep(0.3)
        for _ in range(40):
            assert c.blob() == value
        c.ping()


def test_a_reader_that_stops_and_half_closes():
    with ours("--silence", "1") as server, Wire(server) as other:
        other.set("/big", b"x" * (8 << 20))
        other.ping()
        with Wire(server) as c:
            c.raw(request(GET, "/big") * 4)
            c.sock.shutdown(socket.SHUT_WR)
            server.wait_for_log("does not take its answers")
        other.ping()


def test_answers_that_would_be_enormous(server, client):
    """131072 times the same large value."""
    with Wire(server) as c:
        c.set("/big", b"x" * (4 << 20))
        c.raw(request(MGET, ["/big"] * 131072))
        assert c.closed()
    server.wait_for_log("MULTI_GET: the answer would have")


def test_a_request_that_never_ends():
    with ours("--max-request", "1") as server, Wire(server) as other:
        with Wire(server) as c:
            try:
                c.raw(bytes([WAIT]) + u64(131072) + blob("k" * 8000) * 1000)
            except ConnectionError:
                pass
            assert c.closed()
        server.wait_for_log("its request has more than 1048576 bytes")
        other.ping()


RUN = "/torch.rendezvous.some.run"
OURS = "/\x01muster/something"


def greet(node: Wire) -> None:
    node.raw(hello("some.run"))
    assert node.blob()[1] == WELCOME


def in_pieces(server, other: Wire, data: bytes) -> None:
    """From a peer that is closed because of it."""
    with Wire(server) as c:
        c.ping()
        c.raw(data[:20])
        other.ping()  # It has been read; the rest comes by itself.
        try:
            c.raw(data[20:])
            while c.sock.recv(1 << 20):
                pass
        except ConnectionError:
            pass


@pytest.mark.parametrize("data, says", [
    (request(ADD, "/a.long.enough.counter", 1), "ADD of key"),
    (request(ADD, RUN, 1), "ADD of key"),
    (request(SET, OURS, "x"), "SET of key"),
    (request(CAS, OURS, "x", "y"), "COMPARE_SET of key"),
    (request(APPEND, OURS, "x"), "APPEND of key"),
    (request(PUSH, OURS, "x"), "QUEUE_PUSH of key"),
    (request(MSET, [RUN, "v", OURS, "x"]), "MULTI_SET of key"),
    (request(MGET, ["/big"] * 40), "MULTI_GET: the answer would have"),
    (request(MGET, ["/big"] * 30) * 2 + request(GET, RUN), "leaves its answers unread"),
    (hello("", addr="x"), "HELLO has a run id of 0 bytes"),
    (hello("other", addr=""), "HELLO with an address of 0 bytes"),
], ids=["add", "add-run", "set", "cas", "append", "push", "mset", "mget", "unread", "no-run",
        "no-address"])
def test_a_request_in_pieces_that_is_refused(data, says):
    """While nodes of ours have their rendezvous here: after each request their host looks
    at its keys, those of a peer that was just thrown out too."""
    with ours("--max-unread", "1") as server, Wire(server) as node, Wire(server) as other:
        greet(node)
        other.set("/a.long.enough.counter", "abc")
        other.set("/big", "x" * 30000)
        in_pieces(server, other, data)
        server.wait_for_log(says)
        assert other.get("/a.long.enough.counter") == b"abc"
        node.raw(message(3))  # LEAVE
        assert node.blob()[1] == LEFT
        assert server.stop() == 0, server.stderr()


def test_a_change_in_pieces_whose_answer_is_too_much():
    """The peer is thrown out, but what it wrote it has written: the host must see it."""
    with ours("--max-unread", "1") as server, Wire(server) as node, Wire(server) as other:
        greet(node)
        in_pieces(server, other, request(CAS, RUN, other.get(RUN), "z" * (1 << 20)))  # the answer has it, too
        assert "leaves its answers unread" in server.wait_for_log(f"key {RUN}: ")
        assert server.stop() == 0, server.stderr()


def message(kind: int) -> bytes:
    return request(PUSH, "/\x01muster/run", bytes([3, kind]))


def attach(run: str) -> bytes:
    """A node's first message to its run, if it shares the record alone."""
    return hello(run, "n", flags=16, nonce=7)


@pytest.fixture
def live():
    """A list for more connections than a process may have by default; closes them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1200:
        pytest.skip(f"this process may open {hard} files only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    wires: list[Wire] = []
    yield wires
    for w in wires:
        w.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_more_jobs_than_a_store_can_coordinate(live):
    """A job that has come already may grow, whatever the number of others."""
    with ours() as server:
        def node(run: str, source: str = "127.0.0.1") -> Wire:
            w = Wire(server, source=source)
            w.raw(attach(run))
            return w

        for i in range(1024):
            live.append(node(f"job{i}", f"127.0.0.{10 + i // 256}"))
            assert live[-1].blob()[1] == WELCOME
        with node("another") as w:
            assert w.blob()[1] == REFUSED
        server.wait_for_log("already has 1024 runs under way")
        with node("job7") as w:
            assert w.blob()[1] == WELCOME
        assert server.stop() == 0


def test_more_runs_than_a_host_can_have(live):
    """It lets go of those that are over, and not of what is known of them."""
    def node(run: str, closes: bool = False, source: str | None = None, **more) -> Wire:
        w = Wire(server, source=source)
        w.raw(hello(run, **more) + (message(4) if closes else b""))
        return w

    def job(run: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [MUSTER, "run", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{server.port}",
             f"--rdzv-id={run}", "--local-addr=127.0.0.1", "--no-python", "true"],
            capture_output=True, text=True, timeout=120)

    with ours() as server:
        for i in range(1100):
            with node(f"over{i}", closes=True) as w:
                assert w.blob()[1] == WELCOME and w.blob()[1] == NEWS  # closed
            with node(f"wrong{i}", settings="") as w:
                assert w.blob()[1] == REFUSED
        for i in range(1024):
            live.append(node(f"live{i}", source=f"127.0.0.{10 + i // 256}"))
            assert live[-1].blob()[1] == WELCOME
        with node("another") as w:
            refused = w.blob()
            assert refused[1] == REFUSED and refused[2:6] == (-16 & 0xFFFFFFFF).to_bytes(4, "little")
            assert b"already has 1024 runs under way" in refused
        with node("live7", addr="second") as w:
            assert w.blob()[1] == WELCOME
        r = job("another")
        assert r.returncode and "already has 1024 runs under way" in r.stderr, r.stderr
        assert server.stderr().count("turned a node of run \"another\" away") < 5

        live[0].raw(message(4))
        assert live[0].blob()[1] == NEWS
        live[0].close()
        r = job("another")
        assert r.returncode == 0, r.stderr
        with node("over3") as w:  # in the place of "another", which is over
            assert w.blob()[1] == WELCOME and w.blob()[1] == NEWS
        assert server.stop() == 0


def test_one_address_cannot_take_all_runs():
    with ours() as server:
        live = []
        for i in range(256):
            live.append(Wire(server))
            live[-1].raw(hello(f"run{i}"))
            assert live[-1].blob()[1] == WELCOME
        with Wire(server) as w:
            w.raw(hello("one more"))
            refused = w.blob()
            assert refused[1] == REFUSED and b"256 that were begun from one address" in refused
        assert 'turned a node of run "one more" away' in server.stderr()
        with Wire(server, source="127.0.0.9") as w:
            w.raw(hello("one more"))
            assert w.blob()[1] == WELCOME
        for w in live:
            w.close()


def test_every_request_has_its_time():
    """Not a connection's first alone: an unfinished one is a way to hold memory."""
    with ours("--silence", "1") as server, Wire(server) as other:
        other.raw(request(SET, "/k", "v"))
        slow = Wire(server)
        slow.raw(request(SET, "/k2", "v") + request(GET, "/k"))
        assert slow.blob() == b"v"
        slow.raw(request(MSET, ["/a", "b" * 100000])[:-1])
        start = time.monotonic()
        assert slow.sock.recv(1) == b""
        assert 0.5 < time.monotonic() - start < 30
        server.wait_for_log("no whole request within 1000 ms")
        time.sleep(1.2)  # an idle connection is left alone
        other.raw(request(GET, "/k"))
        assert other.blob() == b"v"


def test_all_connections_together_have_a_limit():
    with ours("--max-held", "8", "--max-request", "4") as server, Wire(server) as other:
        held = []
        piece = request(MSET, ["/a", b"x" * (4 << 20)])[:3 << 20]
        for _ in range(4):
            held.append(Wire(server))
            try:
                held[-1].raw(piece)
            except OSError:
                pass
        server.wait_for_log("of all connections take more than 8 MiB")
        other.raw(request(SET, "/k", "v") + request(GET, "/k"))
        assert other.blob() == b"v"
        for w in held:
            w.sock.close()
        with Wire(server) as late:  # what they held is free again
            late.raw(request(SET, "/b", b"y" * (3 << 20)) + request(GET, "/b"))
            assert len(late.blob()) == 3 << 20


def test_a_flood_of_tiny_requests(server, client):
    with Wire(server) as c:
        c.raw(request(LIST) * 20000 + b"\x0d\x01\x02\x03\x04")
        for _ in range(20000):
            for _ in range(c.number()):
                c.blob()
        assert c.take(4) == b"\x01\x02\x03\x04"


def test_ten_thousand_silent_connections():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < 10200:
        pytest.skip(f"this process may open {hard} files only")
    try:
        with ours("--silence", "2") as server, Wire(server) as client:
            client.ping()
            before = memory(server.process.pid)
            silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(10000)]
            client.ping()
            grown = memory(server.process.pid) - before
            assert grown / 10000 < 1024, grown
            for s in silent:  # Each is closed when its time has come.
                s.settimeout(60)
                assert s.recv(1) == b""
                s.close()
            client.ping()
            lines = server.stderr().count("no whole request within 2000 ms")
            assert 0 < lines < 1000  # the log has a limit, too: 10 in 10 s
            assert server.stop() == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_out_of_descriptors():
    """Those who are in are served; those in the queue come in when somebody leaves."""
    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))

    if os.geteuid() == 0:
        wrap = ["setpriv", "--bounding-set", "-sys_resource", "--inh-caps", "-sys_resource"]
        if subprocess.run([*wrap, "true"], capture_output=True).returncode:
            pytest.skip("cannot give up the right to raise the limit")
    else:
        wrap = []
    p = subprocess.Popen([*wrap, str(MUSTER), "store", "--port", "0", "--bind", "127.0.0.1"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         preexec_fn=limit)
    try:
        port = int(p.stdout.readline().rpartition(":")[2])
        conns = [Wire(port) for _ in range(60)]
        conns[0].ping()
        for c in conns[:30]:
            c.close()
        for c in conns[30:]:
            c.ping()
            c.close()
    finally:
        p.terminate()
        _, err = p.communicate(timeout=60)
    assert "cannot accept more than" in err and p.returncode == 0


# ---- the command ----

@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_ends_cleanly(sig):
    with ours() as s, Wire(s) as busy, Wire(s) as idle:
        busy.wait("/never")
        busy.ping()
        assert s.stop(sig) == 0
        assert busy.closed() and idle.closed()
        assert s.stderr() == ""


def run(*args: str) -> subprocess.CompletedProcess:
    return subprocess.run([MUSTER, "store", *args], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("args, says", [
    (["--bind", "nowhere"], "not a numeric IPv4 or IPv6 address"),
    (["--bind", "192.0.2.1"], "this machine has no such address"),
    (["--port", "65536"], "a port is a number from 0 to 65535"),
    (["--port", "-1"], "a port is a number from 0 to 65535"),
    (["--port", ""], "a port is a number from 0 to 65535"),
    (["--port"], "needs a value"),
    (["--prot", "1"], "--prot: there is no such option; did you mean --port?"),
    (["--encrypt=yes"], "--encrypt: takes no value"),
    (["extra"], "takes no arguments"),
    (["--silence", "0"], "give a number from 1"),
    (["--old-clients", "3.0"], "give 2.0 or 2.1"),
    (["--port", "0", "--port-file", "/nonexistent/port"], "cannot write the port file"),
])
def test_bad_command_lines(args, says):
    r = run(*args)
    assert r.returncode == 2 and says in r.stderr and r.stdout == ""
    assert r.stderr.startswith("muster store: error: ") and r.stderr.count("\n") == 1


def test_port_in_use():
    with ours() as s:
        r = run("--bind", "127.0.0.1", "--port", str(s.port))
        assert r.returncode == 2
        assert f"127.0.0.1:{s.port}: address already in use" in r.stderr
        assert "choose another port" in r.stderr


def test_port_file(tmp_path):
    path = tmp_path / "port"
    with ours("--port-file", str(path)) as s:
        assert path.read_text() == f"{s.port}\n"
    assert os.listdir(tmp_path) == ["port"]


def test_binds_only_what_was_asked():
    with ours(bind="127.0.0.2") as s:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", s.port))
        with Wire(s, host="127.0.0.2") as c:
            c.ping()
    with ours(bind=None) as s:
        for host in ("127.0.0.1", "::1"):
            with Wire(s, host=host) as c:
                c.ping()


def test_help():
    r = run("--help")
    assert r.returncode == 0 and "usage: muster store" in r.stdout


def test_a_state_named_many_times_is_read_once(server):
    """A request of 1 MiB that names the key of a run's state again and again, with a pickle
    that takes a while to find wrong: others are answered meanwhile."""
    node, stranger = Wire(server), Wire(server)
    node.raw(hello("long"))
    node.take(8)
    state = _RendezvousState()
    state.last_heartbeats = {_NodeDesc(f"node{i}", i, 0): datetime.datetime(2026, 1, 1) for i in range(4000)}
    value = base64.b64encode(pickle.dumps(state)[:-1] + b"#")  # wrong, but only at its end
    key = "/torch.rendezvous.long"
    pairs = [part for _ in range(20000) for part in (key, "")] + [key, value]
    began = clock()
    stranger.send(MSET, pairs)
    stranger.ping()
    took = clock() - began
    assert took < 5, f"the store was busy for {took:.1f} s"


# ---- in the job's record ----

RANKS, PUBLISH, BYE, OBSERVER = 9, 7, 5, 1


def job(kind: int, *fields: int | str | tuple[int]) -> bytes:
    """A message to the run: a number has 64 bits, one in a tuple 32."""
    out = bytes([3, kind])
    for f in fields:
        if isinstance(f, tuple):
            out += struct.pack("<I", f[0])
        else:
            out += struct.pack("<q", f) if isinstance(f, int) else struct.pack("<I", len(f)) + f.encode()
    return request(PUSH, "/\1muster/run", out)


def attach_as(nonce: int, node: int = 0, flags: int = 0) -> bytes:
    return hello("run", "host", flags=16 | flags, nonce=nonce, node=node)


def attached(w: Wire) -> int:
    """The number that the next HELLO got."""
    while (message := w.blob())[1] != WELCOME:
        pass
    return struct.unpack("<I", message[2:6])[0]


def test_looking_at_a_job_takes_no_place_in_it(server, client):
    """More often than a job can have nodes: each look must leave its place to the next."""
    with Wire(server) as node, Wire(server) as w:
        node.raw(attach_as(1))
        assert attached(node) == 1
        for first in range(0, 70000, 1000):
            w.raw(b"".join(attach_as(2 + first + i, 0, OBSERVER) + job(BYE) for i in range(1000)))
            for _ in range(1000):
                assert attached(w) == 0
        with Wire(server) as late:
            late.raw(attach_as(1 << 40))
            assert attached(late) == 2


def test_a_connection_is_one_node(server, client):
    with Wire(server) as w:
        w.raw(attach_as(7) + attach_as(8))
        assert closes(w)
    server.wait_for_log("a connection belongs to one node")


@pytest.mark.parametrize("message, says", [
    (attach_as(9, node=2 ** 32 - 2), "its node is 4294967294"),
    (attach_as(9, node=2 ** 31), "its node is 2147483648"),
    (job(RANKS, 2 ** 63 - 1, 0, 1, 1, (0,), -1, 0), "its round is"),
    (job(RANKS, 0, 2 ** 63 - 1, 1, 1, (0,), -1, 0), "its rank is"),
    (job(RANKS, 0, 1, 2 ** 63 - 1, 1, (0,), -1, 0), "its count is"),
    (job(RANKS, 0, -2, 1, 1, (0,), -1, 0), "its rank is -2"),
    (job(PUBLISH, 1, -2 ** 63, 0, ""), "its mono_us is"),
    (job(PUBLISH, 1, 0, 2 ** 63 - 1, ""), "its wall_us is"),
], ids=lambda x: x if isinstance(x, str) else "")
def test_numbers_that_would_overflow_are_refused(server, client, message, says):
    with Wire(server) as w:
        w.raw(attach_as(1))
        assert attached(w) == 1
        w.raw(message)
        assert closes(w)
    server.wait_for_log(says)


def test_the_highest_node_number_leaves_numbers_for_others(server, client):
    with Wire(server) as a, Wire(server) as b, Wire(server) as c:
        for w, nonce, node in ((a, 1, 2 ** 31 - 1), (b, 2, 2 ** 30 - 1), (c, 3, 0)):
            w.raw(attach_as(nonce, node=node))
        numbers = {attached(w) for w in (a, b, c)}
        assert len(numbers) == 3 and min(numbers) > 0 and max(numbers) < 2 ** 31


# ---- with a secret ----

TOKEN = "a-token-that-nobody-else-has-0123456789"


@pytest.fixture
def closed_door():
    """A store with a secret that belongs to another user, to whom we are strangers."""
    if os.geteuid():
        pytest.skip("only root can start a store of somebody else's")
    with tempfile.TemporaryDirectory() as there:
        os.chmod(there, 0o755)
        shutil.copy(MUSTER, there)
        env = dict(os.environ, MUSTER_TOKEN=TOKEN)
        argv = ["prlimit", "--nofile=1024:1024", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", f"{there}/muster", "store", "--port", "0",
                "--bind", "127.0.0.1"]
        with Server(argv, env) as s:
            yield s
            assert s.process.poll() is None, s.stderr()
            assert s.stop() == 0


def its_own(server: Server, *requests: bytes) -> str:
    """What the store's own user is answered."""
    code = ("import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1])), timeout=60)\n"
            "s.sendall(bytes.fromhex(sys.argv[2])); s.shutdown(1)\n"
            "while b := s.recv(65536): print(b.hex(), end='')")
    return bytes.fromhex(subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-c", code, str(server.port),
         (MAGIC + b"".join(requests)).hex()], capture_output=True, text=True, check=True, timeout=60).stdout)


def closes(w: Wire) -> bool:
    try:
        while w.sock.recv(65536):
            pass
    except ConnectionError:
        pass
    return True


def test_connections_without_a_proof_make_room(closed_door):
    """Three quarters of the descriptors, and the next one takes the place of the oldest: nobody is kept out by them."""
    held = [Wire(closed_door) for _ in range(768)]
    held[-1].raw(request(PING) + b"\1\2\3\4")
    assert held[-1].sock.recv(4) == b"\1\2\3\4"  # all of them are accepted
    assert its_own(closed_door, request(SET, "/k", "v"), request(GET, "/k")) == blob("v")
    assert closes(held[0])
    closed_door.wait_for_log("come from its address, and it is the oldest of them")
    held[-1].raw(request(PING) + b"\1\2\3\4")
    assert held[-1].sock.recv(4) == b"\1\2\3\4"
    for w in held:
        w.close()


def test_a_flood_from_elsewhere_does_not_push_a_slow_member_out(closed_door):
    """Who is far away takes long to prove itself. It is the oldest, but it is not one of many."""
    slow = [Wire(closed_door, source="127.0.0.2"), Wire(closed_door, source="127.0.0.3")]
    flood = [Wire(closed_door) for _ in range(900)]
    assert closes(flood[0])
    for w in slow:
        w.raw(request(PING) + b"\1\2\3\4")
        assert w.sock.recv(4) == b"\1\2\3\4"
    for w in flood + slow:
        w.close()


@pytest.mark.parametrize("words", [1, 2])
def test_a_member_that_is_hung_up_on_tries_again(closed_door, tmp_path, words):
    """After its first words, or later on the way to its proof: until its time is up, and not six times alone."""
    hung_up = 0
    proxy = socket.create_server(("127.0.0.1", 0))
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    node = subprocess.Popen([MUSTER, "run", "--nnodes=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{proxy.getsockname()[1]}",
                             "--rdzv-conf=is_host=0,read_timeout=60", f"--token-file={tmp_path}/token", "--no-python", "true"],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def carry(a, b):
        try:
            while data := a.recv(65536):
                b.sendall(data)
            b.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    ends = []
    proxy.settimeout(0.2)
    while node.poll() is None:
        try:
            client, _ = proxy.accept()
        except TimeoutError:
            continue
        client.settimeout(10)
        server = socket.create_connection(("127.0.0.1", closed_door.port))
        if hung_up < 10:
            hung_up += 1
            try:
                for _ in range(words - 1):
                    server.sendall(client.recv(65536))
                    client.sendall(server.recv(65536))
                client.recv(1)
            except OSError:
                pass
            client.close()
            server.close()
            continue
        ends += [client, server]
        for pair in ((client, server), (server, client)):
            threading.Thread(target=carry, args=pair, daemon=True).start()
    said = node.communicate()[0]
    assert (hung_up, node.returncode) == (10, 0), said
    for end in [*ends, proxy]:
        end.close()


def test_requests_without_a_proof_are_counted(closed_door):
    with Wire(closed_door) as w:  # What a torchrun asks for, again and again.
        w.raw(request(GET, "/torch.rendezvous.job") * 100)
        assert closes(w)
    closed_door.wait_for_log("64 requests without a proof")


def test_bytes_without_a_proof_have_a_limit(closed_door):
    """Of each and of all, far from what members may hold."""
    with Wire(closed_door) as w:
        try:
            w.raw(request(SET, "/k", b"x" * (1 << 20)))
        except OSError:
            pass
        assert closes(w)
    closed_door.wait_for_log("its request has more than 131072 bytes")
    held = []
    for _ in range(700):  # of 100 KiB
        held.append(Wire(closed_door))
        try:
            held[-1].raw(request(SET, "/k", b"x" * (1 << 20))[:100 << 10])
        except OSError:
            pass
    closed_door.wait_for_log("connections that have not proven themselves hold too much")
    spare = 300 if "asan" in MUSTER.parts else 0  # ASan keeps 256 MiB of what is freed
    assert memory(closed_door.process.pid) < (150 + spare) << 20
    assert its_own(closed_door, request(SET, "/k", "v"), request(GET, "/k")) == blob("v")
    for w in held:
        w.close()


GONE = """
import socket, struct, sys
for i in range(40):
    s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    if i % 2:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.sendall(bytes.fromhex(sys.argv[2]))
    s.close()
"""


def test_whoever_is_gone_was_nobody():
    """Says what it wants and closes, or resets: the kernel then says that it was root's, which must not be believed."""
    if os.geteuid():
        pytest.skip("only root can be another user")
    with ours(env=dict(os.environ, MUSTER_TOKEN=TOKEN)) as server:
        os.kill(server.process.pid, signal.SIGSTOP)
        subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-c", GONE,
                        str(server.port), (MAGIC + request(SET, "/theirs", "x")).hex()], check=True, timeout=60)
        os.kill(server.process.pid, signal.SIGCONT)
        server.wait_for_log("refused")
        for _ in range(3):  # whoever came before us has been served
            with Wire(server) as w:
                w.raw(request(LIST))
                assert w.number() == 0


def test_an_own_workers_first_request_may_be_large():
    with ours(env=dict(os.environ, MUSTER_TOKEN=TOKEN)) as server, Wire(server) as w:
        w.raw(request(SET, "/k", b"x" * (3 << 20)) + request(GET, "/k"))
        assert len(w.blob()) == 3 << 20


@pytest.mark.parametrize("value", ["/tmp/torchelastic/x", "/torch.rendezvous.job", "/\1muster/caps"])
def test_a_workers_value_may_look_like_a_key_of_the_agents(value):
    with ours(env=dict(os.environ, MUSTER_TOKEN=TOKEN)) as server, Wire(server) as w:
        w.raw(request(MSET, ["/log", value, "/next", "v"]) + request(GET, "/log"))
        assert w.blob() == value.encode()
        w.raw(request(MSET, ["/log", "x", "/torch.rendezvous.job", "v"]))  # but not a key, wherever it stands
        assert closes(w)
        server.wait_for_log("its MULTI_SET was for a key of the agents")


def test_an_own_worker_may_say_a_word_and_go():
    """Its socket belongs to nobody when its request is looked at; it belonged to us when it was greeted."""
    with ours(env=dict(os.environ, MUSTER_TOKEN=TOKEN)) as server:
        for i in range(20):
            w = Wire(server, MAGIC + request(PING) + b"\1\2\3\4")
            assert w.sock.recv(4) == b"\1\2\3\4"
            os.kill(server.process.pid, signal.SIGSTOP)
            w.raw(request(SET, f"/k{i}", "v"))
            w.close()
            os.kill(server.process.pid, signal.SIGCONT)
        with Wire(server) as w:
            for i in range(20):
                w.raw(request(WAIT, [f"/k{i}"]))
                assert w.sock.recv(1) == b"\0"


def test_a_token_may_come_by_a_pipe_in_pieces(tmp_path):
    pipe, whole = tmp_path / "pipe", tmp_path / "whole"
    whole.write_text(TOKEN)
    whole.chmod(0o600)
    os.mkfifo(pipe, 0o600)

    def write() -> None:
        with open(pipe, "wb", buffering=0) as f:
            f.write(TOKEN[:20].encode())
            time.sleep(0.2)
            f.write(TOKEN[20:].encode())

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    with ours("--token-file", str(pipe)) as server:
        asked = subprocess.run([MUSTER, "status", f"127.0.0.1:{server.port}", f"--token-file={whole}"],
                               capture_output=True, text=True, timeout=60)
        assert asked.returncode == 0 and "another secret" not in asked.stderr, asked.stderr
    writer.join()


def test_nodes_that_never_join_have_a_limit():
    count = 16384
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < count + 200:
        pytest.skip(f"this process may open {hard} files only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + 200), hard))
    nodes = []
    try:
        with ours() as server:
            for i in range(count):
                s = socket.socket()
                s.connect(("127.0.0.1", server.port))
                s.sendall(MAGIC + hello("run", pid=i))
                nodes.append(s)
            for s in (nodes[0], nodes[-1]):
                s.settimeout(60)
                assert s.recv(10)[9] == WELCOME  #, behind its length
            with Wire(server) as w:
                w.raw(hello("run", pid=count))
                refused = w.blob()
                assert refused[1] == REFUSED and b"16384 nodes that have not sent JOIN" in refused
            nodes[0].close()
            with Wire(server) as w:
                w.raw(hello("run", pid=count))
                assert w.blob()[1] == WELCOME
            assert server.stop() == 0
    finally:
        for s in nodes:
            s.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
