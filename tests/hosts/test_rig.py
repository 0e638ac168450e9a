"""The rig does what the other tests rely on."""
from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest
from rig import PYTHON, Rig, clock

DATE = "import time; print(time.time(), time.monotonic())"


def connects(a, address: str, timeout: int) -> bool:
    code = f"import socket; s = socket.create_connection(({address!r}, 7777), timeout={timeout}); s.recv(2)"
    try:
        a.run([PYTHON, "-c", code])
    except RuntimeError:
        return False
    return True


def reaches(a, address: str) -> bool:
    """A host that was cut off asks once a second where an address is, and looks again only then."""
    return connects(a, address, timeout=30)


def cut_off(a, address: str) -> bool:
    return not connects(a, address, timeout=1)


SERVER = """
import socket
s = socket.create_server(("::", 7777), family=socket.AF_INET6, dualstack_ipv6=True)
print("ready", flush=True)
while True:
    c, _ = s.accept(); c.send(b"hi"); c.close()
"""


def serve(host) -> None:
    host.start([PYTHON, "-u", "-c", SERVER]).wait_for("ready")


def test_hosts_have_names_and_addresses_of_their_own() -> None:
    with Rig(3) as rig:
        assert rig[1].run(["hostname"]) == "node2\n"
        assert os.uname().nodename != "node2"
        serve(rig[0])
        assert reaches(rig[2], "node1")
        assert reaches(rig[2], rig[0].ip6)
        assert "10.77.0." not in subprocess.check_output(["ip", "addr"], text=True)


def test_a_cable_a_partition_and_their_end() -> None:
    with Rig(3) as rig:
        serve(rig[0])
        rig[1].link(up=False)
        assert cut_off(rig[1], rig[0].ip4) and reaches(rig[2], rig[0].ip4)
        rig[1].link(up=True)
        assert reaches(rig[1], rig[0].ip4)
        rig.part([rig[0], rig[1]], [rig[2]])
        assert cut_off(rig[2], rig[0].ip4) and reaches(rig[1], rig[0].ip4)
        rig.heal()
        assert reaches(rig[2], rig[0].ip4)


def connect_seconds(a, b) -> float:
    code = ("import socket, time; t = time.monotonic();"
            f"socket.create_connection(({b.ip4!r}, 7777));"
            "print(time.monotonic() - t)")
    return float(a.run([PYTHON, "-c", code]))


def test_a_bad_cable_delays() -> None:
    with Rig(2) as rig:
        serve(rig[0])
        rig[1].bad_cable(delay_ms=100)
        assert connect_seconds(rig[1], rig[0]) >= 0.2
        rig[1].link(up=False)
        assert cut_off(rig[1], rig[0].ip4)


def test_a_bad_cable_loses() -> None:
    with Rig(2) as rig:
        serve(rig[0])
        rig[1].bad_cable(loss=100)
        assert cut_off(rig[1], rig[0].ip4)


def test_long_frames_vanish_when_the_switch_is_narrower() -> None:
    send = ("import socket, sys; s = socket.create_connection((sys.argv[1], 7778), 5);"
            "s.sendall(b'x' * int(sys.argv[2])); s.settimeout(1.5); s.recv(1)")
    sink = ("import socket; s = socket.create_server(('', 7778)); print('up', flush=True)\n"
            "while True:\n c, _ = s.accept(); n = 0\n"
            " while n < 100: n += len(c.recv(1 << 16))\n"
            " c.send(b'.')")
    with Rig(2) as rig:
        rig[0].start([PYTHON, "-u", "-c", sink]).wait_for("up")
        rig[1].mtu(600)
        rig[1].run([PYTHON, "-c", send, rig[0].ip4, "100"])
        with pytest.raises(RuntimeError, match="timed out"):
            rig[1].run([PYTHON, "-c", send, rig[0].ip4, "1400"])


def test_one_family_only() -> None:
    with Rig(2, ipv4=False) as rig:
        serve(rig[0])
        assert reaches(rig[1], "node1")
        assert cut_off(rig[1], rig[0].ip4)


def test_a_clock_that_is_ahead_in_wall_time_only() -> None:
    with Rig(2) as rig:
        rig[1].clock_ahead(3600)
        wall, mono = map(float, rig[1].run([PYTHON, "-c", DATE]).split())
        assert 3590 < wall - time.time() < 3610
        assert abs(mono - time.monotonic()) < 60


def test_a_dead_name_server_keeps_one_waiting() -> None:
    with Rig(1) as rig:
        rig[0].dead_dns()
        slow = rig[0].start([PYTHON, "-c", "import socket; socket.getaddrinfo('x.test', 1)"])
        with pytest.raises(AssertionError, match="still runs"):
            slow.wait(timeout=2)


def test_power_off_leaves_nothing_running() -> None:
    with Rig(2) as rig:
        victim = rig[0].start(["sleep", "1000"])
        end = clock() + 30  # it may not have entered the host's network yet
        while victim.pid not in rig[0].processes():
            assert clock() < end
            time.sleep(0.02)
        rig[0].power_off()
        assert victim.wait(5) == -signal.SIGKILL
        assert rig[0].processes() == {}
