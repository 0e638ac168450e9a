"""Real PyTorch clients on our server and on torch's own: the same calls must give the
same values, exceptions and messages."""
from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from datetime import timedelta

import pytest
from stores import ours, torchs

dist = pytest.importorskip("torch.distributed")
from stores import in_thread  # noqa: E402

SHORT = timedelta(milliseconds=200)


@pytest.fixture(scope="module")
def servers():
    with ours() as a, torchs() as b:
        yield {"ours": a, "torch": b}


def connect(port: int, seconds: float = 60, **more):
    return dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=seconds),
                         **more)


def outcome(fn, *args, **kwargs):
    """What the user sees, without what differs from run to run."""
    try:
        value = fn(*args, **kwargs)
    except Exception as e:  # noqa: BLE001 - the exception is what we want to know
        text = str(e).split("\n")[0]
        # A server that closes may be seen as a reset, if bytes were under way.
        text = re.sub(r"Connection reset by peer|Failed to recv, got 0 bytes.*|Broken pipe",
                      "CLOSED", text)
        return type(e).__name__, text
    return sorted(value) if fn.__name__ == "list_keys" else value


def test_every_call(servers):
    """One long story, told to both servers."""
    stories = {}
    for name, server in servers.items():
        s = connect(server.port, world_size=3, wait_for_workers=True)
        t = []
        do = lambda fn, *a, **k: t.append((fn.__name__, a, outcome(fn, *a, **k)))  # noqa: E731,B023
        do(s.num_keys)
        do(s.set, "k", "v")
        do(s.get, "k")
        do(s.set, "k", b"\x00\xff")
        do(s.get, "k")
        do(s.set, "", "")
        do(s.get, "")
        do(s.add, "n", 5)
        do(s.add, "n", -7)
        do(s.get, "n")
        do(s.add, "n", 2**63 - 1)
        do(s.add, "n", 2**62)
        do(s.append, "ap", "ab")
        do(s.append, "ap", "cd")
        do(s.get, "ap")
        for key, expected, desired in [("cs", "", "A"), ("cs", "A", "B"), ("cs", "X", "C"),
                                       ("cs2", "Z", "C"), ("cs3", "", ""), ("cs3", "", "D")]:
            do(s.compare_set, key, expected, desired)
        do(s.check, ["k", "cs"])
        do(s.check, ["k", "cs2"])
        do(s.check, [])
        do(s.wait, ["k", "cs"])
        do(s.wait, ["missing", "m2", "k"], SHORT)
        do(s.wait, ["missing"], timedelta(milliseconds=0))
        do(s.wait, [])
        do(s.multi_set, ["m1", "m2"], ["x", "yy"])
        do(s.multi_get, ["m1", "m2", "k"])
        do(s.multi_get, [])
        do(s.multi_set, [], [])
        do(s.multi_set, ["m1"], ["x", "y"])
        do(s.queue_push, "q", "1")
        do(s.queue_push, "q", b"2\x00")
        do(s.queue_len, "q")
        do(s.check, ["q"])
        do(s.queue_pop, "q")
        do(s.queue_pop, "q")
        do(s.queue_pop, "q", False)
        do(s.queue_len, "q")
        do(s.num_keys)
        do(s.list_keys)
        do(s.delete_key, "k")
        do(s.delete_key, "k")
        do(s.num_keys)
        do(s.barrier, "bar", 1)
        do(s.barrier, "bar2", 2, SHORT)
        do(s.get, "bar2")
        do(s.has_extended_api)
        s.set_timeout(SHORT)
        do(s.get, "nothing")
        do(s.multi_get, ["nothing", "ap"])
        do(s.queue_pop, "nothing")
        do(s.set, "k" * 8191, "x" * 100000)
        do(s.get, "k" * 8191)
        c = s.clone()
        do(c.get, "ap")
        p = dist.PrefixStore("pa", dist.PrefixStore("pb", s))
        do(p.set, "k", "v")
        do(s.get, "pb/pa/k")
        do(p.get, "k")
        do(p.compare_set, "k", "v", "w")
        do(p.list_keys)
        do(p.num_keys)
        do(p.barrier, "b", 1)
        do(p.multi_get, ["k"])
        do(p.wait, ["gone"], SHORT)
        stories[name] = t
    assert stories["ours"] == stories["torch"]
    assert len(stories["ours"]) > 60


@pytest.mark.parametrize("case", [
    ("add on text", lambda s: s.set("t", "text"), lambda s: s.add("t", 1)),
    ("barrier on text", lambda s: s.set("t", "text"), lambda s: s.barrier("t", 2, SHORT)),
    ("key too long", lambda s: None, lambda s: (s.set("k" * 8192, "v"), s.get("a"))),
    ("value too long", lambda s: None, lambda s: (s.set("k", "v" * (8 * 2**20 + 1)), s.get("a"))),
    ("too many keys", lambda s: None, lambda s: s.check(["k"] * 131073)),
], ids=lambda c: c[0])
def test_refusals(servers, case):
    _, before, call = case
    seen = {}
    for name, server in servers.items():
        s = connect(server.port)
        before(s)
        seen[name] = (outcome(call, s), outcome(s.get, "t"), outcome(connect(server.port).get, "t")
                      if "text" in case[0] else None)
    assert seen["ours"] == seen["torch"]
    assert seen["ours"][0] == ("DistNetworkError", "CLOSED")


def test_waits_across_clients(servers):
    for name, server in servers.items():
        a, b = connect(server.port), connect(server.port)
        got = in_thread(a.get, "later")
        b.set("later", "x")
        assert got() == b"x", name
        got = in_thread(a.multi_get, ["w1", "w2"])
        b.set("w2", "2")
        b.add("w1", 1)
        assert got() == [b"1", b"2"], name
        got = in_thread(a.queue_pop, "jobs")
        b.queue_push("jobs", "job")
        assert got() == b"job", name
        stores = [connect(server.port) for _ in range(4)]
        ends = [in_thread(s.barrier, "all", 4) for s in stores]
        assert [e() for e in ends] == [None] * 4, name


def test_a_get_blocked_on_compare_set(servers):
    """On torch's server a compare_set that stores nothing makes such a get return b""."""
    a, b = connect(servers["ours"].port), connect(servers["ours"].port)
    got = in_thread(a.get, "fresh")
    assert b.compare_set("fresh", "old", "new") == b"old"
    assert b.compare_set("fresh", "", "new") == b"new"
    assert got() == b"new"


def test_no_stale_queue_waiter_for_real_clients(servers):
    a, b = connect(servers["ours"].port), connect(servers["ours"].port)
    pop = in_thread(a.queue_pop, "stale")
    b.queue_push("stale", "1")
    assert pop() == b"1"
    a.set_timeout(timedelta(milliseconds=500))
    got = in_thread(outcome, a.get, "absent")
    b.queue_push("stale", "2")
    assert got()[0] == "DistStoreError"


def test_legacy_client(servers):
    """A client made for torch's old server; it cannot use queues."""
    for server in servers.values():
        s = connect(server.port, use_libuv=False)
        s.set("legacy", "v")
        assert s.get("legacy") == b"v"
        assert outcome(s.queue_push, "q", "v")[0] == "NotImplementedError"


def test_server_gone():
    seen = {}
    for name, start in {"ours": ours, "torch": torchs}.items():
        with start() as server:
            idle, busy, bar = (connect(server.port) for _ in range(3))
            idle.set("k", "v")
            blocked = in_thread(outcome, busy.get, "never")
            barrier = in_thread(outcome, bar.barrier, "b", 2)
            while not idle.check(["b"]):
                pass
            server.process.kill()
            server.process.wait()
            seen[name] = (blocked(), barrier(), outcome(idle.add, "n", 1), outcome(idle.get, "k"))
    assert seen["ours"] == seen["torch"]


def test_connect_by_every_name():
    with ours(bind=None) as s:
        for host in ("127.0.0.1", "localhost", "::1"):
            dist.TCPStore(host, s.port, is_master=False).set(host, "x")
    with ours(bind="::1") as s:
        dist.TCPStore("::1", s.port, is_master=False).set("k", "x")
        assert s.said == f"listening on [::1]:{s.port}"


# Torch takes seconds to import: the ranks are forked from one process that has it.
WORKERS = textwrap.dedent("""
    import os, sys, torch, torch.distributed as dist
    from datetime import timedelta
    port, size = int(sys.argv[1]), int(sys.argv[2])

    def work(rank):
        store = dist.TCPStore("127.0.0.1", port, world_size=size, is_master=False)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size,
                                timeout=timedelta(seconds=120))
        t = torch.ones(1) * (rank + 1)
        dist.all_reduce(t)
        assert t.item() == size * (size + 1) / 2, t
        members = list(range(max(2, size // 2)))
        some = dist.new_group(members)
        if rank in members:
            u = torch.ones(1)
            dist.all_reduce(u, group=some)
            assert u.item() == len(members), u
        dist.barrier()
        out = [None] * size
        dist.all_gather_object(out, rank)
        assert out == list(range(size))
        dist.destroy_process_group()

    pids = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            work(rank)
            print("done", rank, flush=True)
            os._exit(0)
        pids.append(pid)
    sys.exit(any(os.waitpid(pid, 0)[1] for pid in pids))
""")


@pytest.mark.parametrize("size", [2, 8])
def test_gloo(size):
    with ours() as server:
        run = subprocess.run([sys.executable, "-c", WORKERS, str(server.port), str(size)],
                             capture_output=True, text=True, timeout=240,
                             env=dict(os.environ, OMP_NUM_THREADS="1"))
        assert run.returncode == 0, run.stderr
        assert run.stdout.count("done") == size
        assert server.process.poll() is None
