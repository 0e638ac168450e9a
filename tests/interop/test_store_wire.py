"""The store server, byte by byte. What torch's server does right, ours does too: those
tests run against both. What it does wrong is tested against ours alone."""
from __future__ import annotations

import itertools
import os
import socket
import time

import pytest
from stores import (ADD, APPEND, BARRIER, CAS, CHECK, DELETE, GET, MAGIC, MGET, MSET,
                    POP, PUSH, QLEN, SET, WAIT, Closed, Wire, blob, ours, request, torchs,
                    u64)

counter = itertools.count()


@pytest.fixture(scope="module")
def our_server():
    with ours() as s:
        yield s


@pytest.fixture
def new_server():
    """For a look at the log, which has ten lines in ten seconds at the most."""
    with ours() as s:
        yield s


@pytest.fixture(scope="module")
def torch_server():
    pytest.importorskip("torch")
    with torchs() as s:
        yield s


@pytest.fixture(params=["ours", "torch"])
def server(request):
    return request.getfixturevalue({"ours": "our_server", "torch": "torch_server"}[request.param])


@pytest.fixture
def key():
    """A key that no other test uses."""
    return f"/k{next(counter)}-{os.getpid()}"


# ---- handshake ----

def test_handshake_in_one_segment(server):
    with Wire(server, MAGIC + b"\x0d\x98\x02\x00\x00") as c:
        assert c.take(4) == b"\x98\x02\x00\x00"


def test_handshake_in_two_segments_and_no_ping(server, key):
    with Wire(server) as c:
        assert c.add(key, 3) == 3


def test_ping_at_any_time(server, key):
    with Wire(server) as c:
        c.ping()
        c.set(key, "v")
        c.ping()
        assert c.get(key) == b"v"
        c.ping()


def test_handshake_byte_by_byte(our_server):
    with Wire(our_server, b"") as c:
        c.slowly(MAGIC + b"\x0d\x01\x00\x00\x00")
        assert c.take(4) == b"\x01\x00\x00\x00"


@pytest.mark.parametrize("hello", [b"\x00\xce\xf7\x85\x3d", b"\x00\x3c\x85\xf7\xce"])
def test_wrong_magic_closes(new_server, hello):
    with Wire(new_server, hello) as c:
        assert c.closed()
    new_server.wait_for_log("wrong magic")


def test_second_validate_closes(server):
    with Wire(server) as c:
        c.ping()
        c.raw(MAGIC)
        assert c.closed()


@pytest.mark.parametrize("op", [0x13, 0x7f, 0xff])
def test_unknown_opcode_closes(server, op):
    with Wire(server) as c:
        c.ping()
        c.raw(bytes([op]))
        assert c.closed()


def test_a_line_in_the_log_names_peer_offset_and_reason(new_server):
    with Wire(new_server) as c:
        c.ping()
        host, port = c.sock.getsockname()
        c.raw(b"\xee")
        assert c.closed()
        log = new_server.wait_for_log(f"{host}:{port}")
    line = [x for x in log.splitlines() if f"{host}:{port}" in x]
    assert len(line) == 1 and "at byte 10: unknown opcode 0xee" in line[0]


def test_half_close_still_answers(server, key):
    with Wire(server) as c:
        c.raw(request(ADD, key, 1) + request(GET, key))
        c.sock.shutdown(socket.SHUT_WR)
        assert (c.number(), c.blob()) == (1, b"1")
        assert c.closed()


def test_answers_before_the_nonsense_arrive(our_server, key):
    with Wire(our_server) as c:
        c.raw(request(ADD, key, 1) + b"\xfe")
        assert c.number() == 1
        assert c.closed()


def test_immediate_close(server):
    for hello in (b"", b"\x00", MAGIC):
        Wire(server, hello).close()
    with Wire(server) as c:
        c.ping()


# ---- the requests ----

def all_requests(k: str) -> tuple[bytes, bytes]:
    """Each request once, and the answers that a fresh store gives."""
    asks = [
        (request(SET, k, "v"), b""),
        (request(GET, k), blob("v")),
        (request(WAIT, [k]), b"\x00"),
        (request(ADD, k + "n", 5), u64(5)),
        (request(ADD, k + "n", -7), u64(-2)),
        (request(GET, k + "n"), blob("-2")),
        (request(CAS, k + "cs", "", "A"), blob("A")),
        (request(CAS, k + "cs", "X", "C"), blob("A")),
        (request(CHECK, [k, k + "cs"]), b"\x00"),
        (request(CHECK, [k + "none"]), b"\x01"),
        (request(CHECK, []), b"\x00"),
        (request(WAIT, []), b"\x00"),
        (request(APPEND, k, "w"), b""),
        (request(GET, k), blob("vw")),
        (request(MSET, [k + "1", "x", k + "2", "yy"]), b""),
        (request(MGET, [k + "1", k + "2", k + "none"]), blob("x") + blob("yy") + blob("")),
        (request(MGET, []), b""),
        (request(MSET, []), b""),
        (request(DELETE, k), u64(1)),
        (request(DELETE, k), u64(0)),
        (request(GET, k), blob("")),
        (request(PUSH, k + "q", "item"), b""),
        (request(QLEN, k + "q"), u64(1)),
        (request(CHECK, [k + "q"]), b"\x00"),
        (request(GET, k + "q"), blob("")),
        (request(POP, k + "q"), u64(1) + blob("item")),
        (request(POP, k + "q"), u64(0)),
        (request(QLEN, k + "q"), u64(0)),
        (request(BARRIER, k + "bar", 1), b"\x00"),
        (request(WAIT, [k + "missing"]), b""),
        (b"\x0c", b"\x01"),
        (b"\x0c", b"\x01"),
        (b"\x0d\x01\x02\x03\x04", b"\x01\x02\x03\x04"),
    ]
    return b"".join(a for a, _ in asks), b"".join(b for _, b in asks)


def test_every_request_in_one_segment(server, key):
    ask, want = all_requests(key)
    with Wire(server) as c:
        c.ping()
        c.raw(ask)
        assert c.take(len(want)) == want
        assert c.quiet(0.05)


def test_every_request_byte_by_byte(server, key):
    ask, want = all_requests(key)
    with Wire(server) as c:
        c.ping()
        c.slowly(ask)
        assert c.take(len(want)) == want


def test_empty_and_strange_keys_and_values(server):
    with Wire(server) as c:
        for k in (b"", b"\x00", b"\xff\xfe\x00x", b"a\nb", "ü".encode()):
            c.set(k, b"\x00\xff" + k)
            assert c.get(k) == b"\x00\xff" + k
            c.set(k, b"")
            assert c.get(k) == b""
            assert c.check(k)
            assert c.delete(k) == 1


def test_num_keys_and_list_keys_ignore_queues(server, key):
    with Wire(server) as c:
        before = c.num()
        c.set(key, "v")
        c.set(key.lstrip("/"), "v")
        c.add("init/", 1)
        c.push(key + "q", "x")
        keys = c.keys()
        assert c.num() == len(keys) == len(set(keys))
        assert {key.encode(), key.lstrip("/").encode(), b"init/"} <= set(keys)
        assert (key + "q").encode() not in keys
        assert c.num() - before in (2, 3)
        assert c.delete(key) == 1 and c.delete(key.lstrip("/")) == 1


# ---- limits ----

def test_limits_are_inclusive(server):
    with Wire(server) as c:
        k, v = b"/" + b"x" * 8191, os.urandom(8 << 20)
        c.set(k, v)
        assert c.get(k) == v
        assert c.delete(k) == 1


@pytest.mark.parametrize("data", [
    bytes([SET]) + u64(8193),
    bytes([GET]) + u64(2**63),
    bytes([SET]) + blob("/k") + u64((8 << 20) + 1),
    bytes([CAS]) + blob("/k") + u64(2**32),
    bytes([CAS]) + blob("/k") + blob("") + u64(2**64 - 1),
    bytes([APPEND]) + blob("/k") + u64(2**62),
    bytes([PUSH]) + blob("/k") + u64(2**64 - 1),
    bytes([WAIT]) + u64(131073),
    bytes([CHECK]) + u64(2**64 - 1),
    bytes([MGET]) + u64(2**63),
    bytes([MSET]) + u64(131073),
    bytes([MSET]) + u64(1) + blob("/k") + u64((8 << 20) + 1),
    bytes([CHECK]) + u64(2) + blob("/k") + u64(8193),
], ids=lambda d: d[:20].hex())
def test_excess_closes_before_the_data(server, data):
    with Wire(server) as c:
        c.ping()
        c.raw(data)
        assert c.closed()


def test_many_keys_in_one_wait(our_server, key):
    keys = [f"{key}/{i}".encode() for i in range(131072)]
    with Wire(our_server) as a, Wire(our_server) as b:
        a.wait(*keys)
        half = len(keys) // 2
        for part in (keys[half:], keys[:half]):
            assert a.quiet(0.05)
            b.send(MSET, [x for k in part for x in (k, b"v")])
        assert a.woken()
        a.send(MGET, keys[:1000])
        assert [a.blob() for _ in range(1000)] == [b"v"] * 1000
        a.send(CHECK, keys)
        assert a.take(1) == b"\x00"


# ---- compare_set ----

@pytest.mark.parametrize("old, expected, answer, stored", [
    (None, b"", b"new", b"new"),
    (None, b"x", b"x", None),
    (b"cur", b"cur", b"new", b"new"),
    (b"cur", b"", b"cur", b"cur"),
    (b"cur", b"x", b"cur", b"cur"),
    (b"", b"", b"new", b"new"),
    (b"", b"x", b"", b""),
])
def test_compare_set(server, key, old, expected, answer, stored):
    with Wire(server) as c:
        if old is not None:
            c.set(key, old)
        assert c.cas(key, expected, "new") == answer
        assert c.check(key) == (stored is not None)
        assert c.get(key) == (stored or b"")


def test_compare_set_wakes_only_if_it_stores(our_server, key):
    with Wire(our_server) as a, Wire(our_server) as b:
        a.wait(key)
        a.ping()
        assert b.cas(key, "x", "y") == b"x"
        assert a.quiet()
        assert b.cas(key, "", "y") == b"y"
        assert a.woken()


# ---- add ----

@pytest.mark.parametrize("text, value", [
    ("12", 12), (" 12abc", 12), ("+5", 5), ("-5", -5), ("\t\n\v\f\r 7", 7), ("0x10", 0),
    ("1e3", 1), (b"12\x0034", 12), ("007", 7), ("9223372036854775807", 2**63 - 1),
    ("-9223372036854775808", -2**63),
    ("", None), ("-", None), ("+", None), ("abc", None), (" ", None), ("- 1", None), ("+-1", None),
    ("9223372036854775808", None), ("-9223372036854775809", None), ("9" * 20, None),
    (b"\x0012", None),
])
def test_add_reads_what_torch_reads(server, key, text, value):
    with Wire(server) as c, Wire(server) as d:
        c.set(key, text)
        c.send(ADD, key, 0)
        if value is None:
            with pytest.raises(Closed):
                c.number()
            assert d.get(key) == (text.encode() if isinstance(text, str) else text)
        else:
            assert c.number() == value
            assert d.get(key) == str(value).encode()


def test_add_wraps_and_goes_negative(server, key):
    with Wire(server) as c:
        assert c.add(key, 2**63 - 1) == 2**63 - 1
        assert c.add(key, 1) == -2**63
        assert c.add(key, -1) == 2**63 - 1
        assert c.add(key + "b", -5) == -5
        assert c.get(key + "b") == b"-5"


# ---- wait and cancel ----

def wakers(k):
    return {
        "set": lambda c: c.set(k, ""),
        "add": lambda c: c.add(k, 1),
        "append": lambda c: c.send(APPEND, k, "x"),
        "multi_set": lambda c: c.send(MSET, ["/other", "1", k, "2"]),
        "compare_set": lambda c: c.cas(k, "", "x"),
        "queue_push": lambda c: c.push(k, "x"),
        "barrier": lambda c: (c.send(BARRIER, k, 1), c.woken()),
    }


@pytest.mark.parametrize("how", wakers("").keys())
def test_each_event_wakes(server, key, how):
    with Wire(server) as a, Wire(server) as b:
        a.wait(key)
        a.ping()
        wakers(key)[how](b)
        assert a.woken()
        a.ping()


def test_delete_and_partial_barrier_wake_nobody(server, key):
    with Wire(server) as a, Wire(server) as b:
        a.wait(key)
        a.ping()
        b.send(BARRIER, key, 2)
        b.ping()
        assert b.delete(key) == 1
        assert a.quiet()
        b.set(key, "x")
        assert a.woken() and b.woken()


def test_wait_counts_each_key_once(server, key):
    ks = [key + str(i) for i in range(5)]
    with Wire(server) as a, Wire(server) as b:
        b.set(ks[0], "there")
        b.ping()
        a.wait(*ks, *reversed(ks))
        a.ping()
        for k in reversed(ks[2:]):
            b.set(k, "x")
            assert b.delete(k) == 1  # struck stays struck
        assert a.quiet()
        b.set(ks[1], "x")
        assert a.woken()
        assert a.quiet(0.05)


def test_many_waiters(server, our_server, key):
    # Torch's server asks the resolver for each peer's name, which may take its time.
    waiters = [Wire(server) for _ in range(1000 if server is our_server else 20)]
    with Wire(server) as b:
        for w in waiters:
            w.wait(key)
        for w in waiters:
            w.ping()
        for w in waiters[::3]:
            w.close()
        b.ping()
        b.set(key, "x")
        for i, w in enumerate(waiters):
            if i % 3:
                assert w.woken()
                w.close()


def test_cancel(server, key):
    with Wire(server) as a, Wire(server) as b:
        assert a.cancel() == b"\x01"
        a.wait(key)
        assert a.cancel() == b"\x01"
        b.set(key, "x")
        b.ping()
        assert a.quiet(0.05)
        assert a.get(key) == b"x"
        a.wait(key)
        a.raw(b"\x0c")
        assert a.take(2) == b"\x00\x01"


def test_requests_behind_a_wait_are_served(server, key):
    with Wire(server) as a, Wire(server) as b:
        a.wait(key)
        assert a.add(key + "n", 1) == 1
        a.ping()
        b.set(key, "x")
        assert a.woken()


def test_get_of_a_key_that_vanished(server, key):
    with Wire(server) as a, Wire(server) as b:
        b.set(key, "v")
        b.ping()
        a.wait(key)
        assert a.woken()
        assert b.delete(key) == 1
        assert a.get(key) == b""


# ---- queues ----

def test_queue_is_first_in_first_out(server, key):
    with Wire(server) as c:
        for i in range(5):
            c.push(key, str(i))
        assert [c.pop(key) for _ in range(6)] == [
            (5 - i, str(i).encode()) for i in range(5)] + [(0, None)]


def test_one_push_wakes_the_oldest_waiter(server, key):
    with Wire(server) as a, Wire(server) as b, Wire(server) as c:
        for w in (a, b):
            w.wait(key)
            w.ping()
        c.push(key, "1")
        assert a.woken()
        assert b.quiet()
        assert a.pop(key) == (1, b"1")
        c.push(key, "2")
        assert b.woken()
        assert b.pop(key) == (1, b"2")


def test_set_on_a_queue_key(server, key):
    with Wire(server) as c:
        c.set(key, "v")
        assert c.check(key) and c.pop(key) == (0, None)
        c.push(key, "x")
        assert c.get(key) == b"v"
        assert c.delete(key) == 1
        assert c.check(key)
        assert c.pop(key) == (1, b"x")
        assert not c.check(key)


def test_no_stale_queue_waiter(our_server, key):
    with Wire(our_server) as a, Wire(our_server) as b:
        a.wait(key + "q")
        a.ping()
        b.push(key + "q", "1")
        assert a.woken()
        a.wait(key + "x")
        a.ping()
        b.push(key + "q", "2")
        b.ping()
        assert a.quiet()
        b.set(key + "x", "v")
        assert a.woken()


def test_wait_on_a_filled_queue_and_a_key(our_server, key):
    with Wire(our_server) as a, Wire(our_server) as b:
        b.push(key + "q", "1")
        b.ping()
        a.wait(key + "q", key + "x")
        a.ping()
        b.push(key + "q", "2")
        b.ping()
        assert a.quiet()
        b.set(key + "x", "v")
        assert a.woken()


def test_two_pushes_do_not_stand_for_a_key(our_server, key):
    with Wire(our_server) as a, Wire(our_server) as b:
        a.wait(key + "q", key + "y")
        a.ping()
        b.push(key + "q", "1")
        b.push(key + "q", "2")
        b.ping()
        assert a.quiet()
        b.set(key + "y", "v")
        assert a.woken()


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_no_lost_wake_up(our_server, key, how):
    with Wire(our_server) as a, Wire(our_server) as b, Wire(our_server) as c:
        for w in (a, b):
            w.wait(key)
            w.ping()
        c.push(key, "1")
        assert a.woken()
        if how == "cancel":
            assert a.cancel() == b"\x01"
        else:
            a.close()
        assert b.woken()
        assert b.pop(key) == (1, b"1")


# ---- barriers ----

def test_barrier(server, key):
    n = 10
    peers = [Wire(server) for _ in range(n)]
    for p in peers[:-1]:
        p.send(BARRIER, key, n)
        p.ping()
    assert all(p.quiet(0.01) for p in peers[:-1])
    peers[-1].send(BARRIER, key, n)
    assert all(p.woken() for p in peers)
    peers[0].send(BARRIER, key, n)  # a late one passes
    assert peers[0].woken()
    assert peers[0].get(key) == str(n + 1).encode()
    for p in peers:
        p.close()


@pytest.mark.parametrize("size", [1, 0, -1, -2**63])
def test_small_barriers_pass(server, key, size):
    with Wire(server) as c:
        c.send(BARRIER, key, size)
        assert c.woken()


def test_barrier_on_text_closes(server, key):
    with Wire(server) as c, Wire(server) as d:
        c.set(key, "text")
        c.send(BARRIER, key, 2)
        assert c.closed()
        assert d.get(key) == b"text"


def test_barrier_timeout_counts_and_death_counts(server, key):
    with Wire(server) as a, Wire(server) as b, Wire(server) as c:
        a.send(BARRIER, key, 4)
        assert a.cancel() == b"\x01"
        a.send(BARRIER, key, 4)
        a.ping()
        b.send(BARRIER, key, 4)
        b.ping()
        b.close()
        c.send(BARRIER, key, 4)
        assert c.woken() and a.woken()


def test_different_world_sizes_and_set_release(server, key):
    with Wire(server) as a, Wire(server) as b:
        a.send(BARRIER, key, 100)
        a.ping()
        b.send(BARRIER, key, 2)
        assert a.woken() and b.woken()
        a.send(BARRIER, key + "s", 5)
        a.ping()
        b.set(key + "s", "x")
        assert a.woken()


# ---- ours alone ----

def test_multi_set_is_one_step(our_server, key):
    """Even if it comes in pieces: nobody sees half of it."""
    with Wire(our_server) as a, Wire(our_server) as b:
        b.wait(key + "0")
        b.ping()
        data = request(MSET, [x for i in range(2000) for x in (f"{key}{i}", "v" * 50)])
        a.raw(data[:-1])
        assert b.quiet()
        with Wire(our_server) as other:
            assert not other.check(key + "0")
        a.raw(data[-1:])
        assert b.woken()
        assert b.check(key + "1999")


def test_second_wait_replaces_the_first(our_server, key):
    with Wire(our_server) as a, Wire(our_server) as b:
        a.wait(key + "1")
        a.wait(key + "2")
        a.ping()
        b.set(key + "1", "x")
        b.ping()
        assert a.quiet()
        b.set(key + "2", "x")
        assert a.woken()
        assert a.quiet(0.05)


def fnv(value: bytes) -> str:
    h = 0xcbf29ce484222325
    for byte in value:
        h = (h ^ byte) * 0x100000001b3 % 2**64
    return f"{h:016x}"


def test_wait_for_a_change(our_server, key):
    watch = lambda value: f"/\x01muster/changed/{fnv(value)}/{key}"  # noqa: E731
    with Wire(our_server) as a, Wire(our_server) as b:
        assert a.check("/\x01muster/caps")
        assert b"changed" in a.get("/\x01muster/caps").split()
        before = a.num()
        a.wait(watch(b""))
        a.ping()
        assert a.num() == before
        b.set(key, "")
        b.ping()
        assert a.quiet(0.05)
        b.set(key, "one")
        assert a.woken()
        a.wait(watch(b"zero"))
        assert a.woken()
        a.wait(watch(b"one"))
        a.ping()
        assert b.cas(key, "one", "one") == b"one"
        assert a.quiet(0.05)
        assert b.delete(key) == 1
        assert a.woken()
        a.wait(watch(b""))
        assert a.cancel() == b"\x01"


@pytest.mark.parametrize("op, rest", [(SET, ["v"]), (ADD, [1]), (APPEND, ["v"]), (DELETE, []),
                                      (CAS, ["", "v"]), (PUSH, ["v"]), (BARRIER, [1])])
def test_reserved_keys_cannot_be_written(new_server, op, rest):
    with Wire(new_server) as c:
        c.ping()
        c.send(op, "/\x01muster/caps", *rest)
        assert c.closed()
    new_server.wait_for_log("the key is reserved")


def test_torch_does_not_know_the_reserved_key(torch_server):
    with Wire(torch_server) as c:
        assert not c.check("/\x01muster/caps")


# ---- PyTorch before 2.2 ----

def test_dialects_without_a_handshake(our_server, key):
    """1.9 to 2.1: no VALIDATE, opcodes one lower."""
    for first in (b"\x03" + blob("init/") + u64(1), b"\x00" + blob(key) + blob("v")):
        with Wire(our_server, b"") as c:
            c.slowly(first)
            if first[0] == 3:
                assert c.number() >= 1
            c.raw(b"\x00" + blob(key) + blob("w"))
            c.raw(b"\x05" + u64(1) + blob(key))
            assert c.take(1) == b"\x00"
            c.raw(b"\x02" + blob(key))
            assert c.blob() == b"w"
            c.raw(b"\x07" + blob(key))  # DELETE_KEY of 2.1, and in practice of older ones
            assert c.number() == 1
            c.raw(b"\x08" + blob(key) + blob("xy") + b"\x09" + u64(1) + blob(key))
            assert c.blob() == b"xy"
            c.raw(b"\x0a" + u64(1) + blob(key) + blob("z") + b"\x0b")
            assert c.take(1) == b"\x01"
            c.raw(b"\x02" + blob(key))
            assert c.blob() == b"z"


def test_dialect_of_2_0_when_asked_for(key):
    with ours("--old-clients", "2.0") as s, Wire(s, b"") as c, Wire(s, b"") as idle:
        c.raw(b"\x03" + blob("init/") + u64(1))
        assert c.number() == 1
        c.raw(b"\x00" + blob(key) + blob("v") + b"\x08" + blob(key))
        assert c.number() == 1
        c.raw(b"\x06")
        assert c.number() == 1
        assert idle.quiet(0.05)


def test_no_late_answer_for_an_old_client_that_gave_up(our_server, key):
    """It has no way to cancel: it just asks the next thing."""
    with Wire(our_server, b"") as a, Wire(our_server) as b:
        a.raw(b"\x05" + u64(1) + blob(key))
        assert a.quiet(0.05)
        a.raw(b"\x03" + blob(key + "n") + u64(1))
        assert a.number() == 1
        b.set(key, "v")
        b.ping()
        assert a.quiet(0.05)


# ---- waiting ----

def processor_ns(pid: int) -> int:
    """What the process has used so far."""
    with open(f"/proc/{pid}/schedstat") as f:
        return int(f.read().split()[0])


def test_a_server_that_was_busy_sleeps_when_nobody_asks(our_server, key):
    """It stays awake for a moment while one request follows the other, no longer."""
    with Wire(our_server) as c:
        for i in range(2000):
            assert c.add(key, 1) == i + 1
        time.sleep(0.1)
        before = processor_ns(our_server.process.pid)
        time.sleep(1)
        assert processor_ns(our_server.process.pid) - before < 20e6
        assert c.add(key, 1) == 2001
