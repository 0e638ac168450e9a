"""`muster store` on one host, real torch clients on others."""
from __future__ import annotations

import pytest
from rig import MUSTER, PYTHON, ROOT, Host, Process, Rig

# A torch client that reports each call on a line of its own.
CLIENT = """
import datetime, sys, time
from torch.distributed import TCPStore
host, name = sys.argv[1], sys.argv[2]
store = TCPStore(host, 29400, is_master=False, timeout=datetime.timedelta(seconds=float(sys.argv[3])))
print("connected", flush=True)
"""
MEET = CLIENT + """
store.add("here", 1)
store.set(name, "x" * 2000)
store.wait(["node1", "node2", "node3"])
print("met", len(store.get("node1")), store.add("here", 0), flush=True)
"""


def serve(host: Host, *options: str) -> Process:
    store = host.start([MUSTER, "store", "--port", "29400", *options])
    store.wait_for("listening on")
    return store


def client(host: Host, code: str, server: str, timeout: float = 60) -> Process:
    return host.start([PYTHON, "-c", code, server, host.name, str(timeout)])


def meet(rig: Rig, server: str) -> None:
    clients = [client(h, MEET, server) for h in rig.hosts]
    for c in clients:
        assert c.wait(100) == 0, c.output()
        assert "met 2000 3" in c.output()


def test_three_hosts_meet_by_name() -> None:
    with Rig(3) as rig:
        store = serve(rig[0])
        meet(rig, "node1")
        store.signal(15)
        assert store.wait(10) == 0


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_three_hosts_meet_with_one_family_only(family: str) -> None:
    with Rig(3, ipv4=family == "ipv4", ipv6=family == "ipv6") as rig:
        serve(rig[0], "--bind", rig[0].ip)
        meet(rig, rig[0].ip)


def test_late_and_lost_frames_only_delay() -> None:
    with Rig(3) as rig:
        for host in rig.hosts[1:]:
            host.bad_cable(delay_ms=20, jitter_ms=10, loss=3)
        serve(rig[0])
        meet(rig, "node1")


def test_a_dead_name_server_delays_nobody_who_gave_a_number() -> None:
    """The server asks nobody for the names of those who come, and answers at once."""
    with Rig(2) as rig:
        for host in rig.hosts:
            host.hosts_file({})
            host.dead_dns()
        store = serve(rig[0])
        # Twenty plain connections, each with one request: none waits for the resolver.
        probe = """
import socket, struct, sys
for i in range(20):
    s = socket.create_connection((sys.argv[1], 29400), 3)
    s.settimeout(3)
    key = b"/n"
    s.sendall(struct.pack("<BI", 0, 0x3C85F7CE) + struct.pack("<BQ", 4, len(key)) + key
              + struct.pack("<q", 1))
    assert struct.unpack("<q", s.recv(8))[0] == i + 1
print("twenty", flush=True)
"""
        assert "twenty" in rig[1].run([PYTHON, "-c", probe, rig[0].ip4])
        assert store.popen.poll() is None


def test_a_cut_host_is_not_waited_for_by_the_others() -> None:
    waiter = CLIENT + """
store.add("here", 1)
store.wait(["never"])
"""
    with Rig(3) as rig:
        serve(rig[0])
        cut = client(rig[1], waiter, "node1")
        cut.wait_for("connected")
        rig[1].link(up=False)
        rest = client(rig[2], CLIENT + """
store.set("k", "v"); print("value", store.get("k").decode(), flush=True)
""", "node1")
        assert rest.wait(60) == 0, rest.output()
        assert "value v" in rest.output()


def test_a_store_that_is_stopped_and_goes_on_has_lost_nothing() -> None:
    with Rig(2) as rig:
        store = serve(rig[0])
        c = client(rig[1], CLIENT + """
store.set("before", "1")
print("set", flush=True)
print("got", store.get("after").decode(), flush=True)
""", "node1")
        c.wait_for("set")
        store.signal(19)  # SIGSTOP
        other = client(rig[0], CLIENT + 'store.set("after", "2"); print("ok", flush=True)',
                       "node1")
        store.signal(18)  # SIGCONT
        assert other.wait(60) == 0, other.output()
        assert c.wait(60) == 0 and "got 2" in c.output(), c.output()


def test_a_narrow_switch_ends_in_a_right_message() -> None:
    """Long frames vanish on the way. torch's own client would wait here for ever."""
    code = """
import sys, muster
store = muster.Store(sys.argv[1], 29400, timeout=3)
print("small", store.add("n", 1), flush=True)
store.set("big", "x" * 200000)
print("big", len(store.get("big")), flush=True)
"""
    with Rig(2) as rig:
        serve(rig[0])
        rig[1].mtu(600)
        c = rig[1].start([PYTHON, "-c", code, "node1"], PYTHONPATH=str(ROOT / "python/src"),
                         MUSTER_LIBRARY=str(ROOT / "build/libmuster.so.0"))
        assert c.wait(60) == 1
        assert "small 1" in c.output() and "\nbig" not in c.output()
        last = c.output().splitlines()[-1]
        assert last.startswith("muster._native.MusterTimeoutError: ") and "node1:29400" in last
