"""muster.Store, from the wheel, against `muster store` and against itself."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from wheels import ROOT, run

SCRIPT = r"""
import sys, threading
import muster

host, port = "127.0.0.1", int(sys.argv[1])
s = muster.Store(host, port, timeout=20)
assert s.port == port and "127.0.0.1" in repr(s)
s.set("k", "text"); assert s.get("k") == b"text"
s.set("bin", b"\0\xff\0"); assert s.get("bin") == b"\0\xff\0"
s.set("empty", ""); assert s.get("empty") == b""
assert s.add("n", 5) == 5 and s.add("n", -7) == -2
s.append("k", "+"); assert s.get("k") == b"text+"
assert s.compare_set("k", "no", "x") == b"text+" and s.compare_set("k", "text+", "y") == b"y"
assert s.check(["k", "n"]) is True and s.check(["k", "missing"]) is False
s.multi_set(["a", "b"], ["1", b"2"]); assert s.multi_get(["b", "a"]) == [b"2", b"1"]
assert s.delete_key("a") is True and s.delete_key("a") is False
s.queue_push("q", "1"); s.queue_push("q", "2")
assert s.queue_len("q") == 2 and s.queue_pop("q") == b"1" and s.queue_pop("q", False) == b"2"
assert {"k", "bin", "b"} <= set(s.list_keys()) and s.num_keys() >= 5

other = s.clone()
threading.Timer(0.2, lambda: other.set("late", "now")).start()
assert s.get("late") == b"now"
view = s.prefixed("p"); view.set("x", "1"); assert s.get("p/x") == b"1"
done = threading.Thread(target=other.barrier, args=("bar", 2)); done.start()
s.barrier("bar", 2); done.join()

try:
    s.wait(["never"], timeout=0.2)
except TimeoutError as e:
    assert isinstance(e, muster.Error) and e.code == "MUSTER_ETIMEDOUT" and "never" in str(e), e
else:
    raise AssertionError("no timeout")
s.set("still", "usable"); assert s.get("still") == b"usable"
for bad in (lambda: s.set("a\0b", ""), lambda: s.multi_set(["a"], [])):
    try:
        bad()
    except ValueError:
        pass
    else:
        raise AssertionError("not refused")
s.close()
try:
    s.get("k")
except ValueError as e:
    assert "closed" in str(e)
with muster.Store.hash() as h:
    assert h.add("n", 1) == 1
with muster.Store.file(sys.argv[2]) as f:
    f.set("k", "v"); assert f.get("k") == b"v"
with muster.Store(host, 0, serve=True) as mine:
    with muster.Store(host, mine.port) as too:
        too.set("k", "v")
    assert mine.get("k") == b"v"

# Time limits as numbers and as timedelta; one for a single get.
from datetime import timedelta
t = muster.Store(host, port, timeout=timedelta(seconds=20))
assert t.timeout == 20.0 and t.host == host
t.set_timeout(timedelta(milliseconds=1500)); assert t.timeout == 1.5
for limit in (0.05, timedelta(milliseconds=50)):
    try:
        t.get("never", timeout=limit)
    except TimeoutError:
        pass
    else:
        raise AssertionError("no timeout")
t.set("there", "1"); assert t.get("there", timeout=5) == b"1"
# Types of their own for an empty queue and for a port that is taken.
try:
    t.queue_pop("empty queue", False)
except muster.MusterQueueEmptyError as e:
    assert isinstance(e, LookupError)
else:
    raise AssertionError("popped")
with muster.Store(host, 0, serve=True, bind=host) as mine:
    try:
        muster.Store(host, mine.port, serve=True, bind=host)
    except muster.MusterAddressInUseError as e:
        assert isinstance(e, OSError)
    else:
        raise AssertionError("bound twice")
# A socket that is bound already; two servers of one process on one port.
import socket
sock = socket.create_server((host, 0))
with muster.Store(host, sock.getsockname()[1], serve=True, listen_fd=sock.detach()) as given:
    given.set("k", "v"); assert given.get("k") == b"v"
first = muster.Store(host, 0, serve=True, multi_tenant=True)
second = muster.Store(host, first.port, serve=True, multi_tenant=True, timeout=7)
first.set("k", "both"); assert second.get("k") == b"both" and second.timeout == 7
first.close()
second.set("k", "alone"); assert second.get("k") == b"alone"
again = muster.Store(host, second.port, serve=True, multi_tenant=True)
assert again.get("k") == b"alone"
for name in dir(muster.Store):
    assert name.startswith("_") or (getattr(muster.Store, name).__doc__ or "").strip(), name
# Held by something that outlives this module: no noise at the end of the interpreter.
sys.held = second
print("all well")
"""


@pytest.fixture(scope="module")
def port():
    server = subprocess.Popen([ROOT / "build/muster", "store", "--bind", "127.0.0.1",
                               "--port", "0"], stdout=subprocess.PIPE, text=True)
    yield int(server.stdout.readline().rsplit(":", 1)[1])
    server.terminate()
    assert server.wait(10) == 0


def test_every_operation(venv: Path, port: int, tmp_path: Path) -> None:
    out = run(venv / "bin/python", "-X", "dev", "-c", SCRIPT, port, tmp_path / "file")
    assert out.stdout == "all well\n"


def test_values_are_shared_with_torch(venv: Path, port: int) -> None:
    ours = f"import muster; muster.Store('127.0.0.1', {port}).set('from muster', 'x')"
    run(venv / "bin/python", "-c", ours)
    theirs = ("from torch.distributed import TCPStore\n"
              f"s = TCPStore('127.0.0.1', {port}, is_master=False)\n"
              "assert s.get('from muster') == b'x'\n"
              "s.set('from torch', 'y')")
    run(sys.executable, "-c", theirs)
    back = f"import muster; print(muster.Store('127.0.0.1', {port}).get('from torch'))"
    assert run(venv / "bin/python", "-c", back).stdout == "b'y'\n"


def test_nobody_there_is_a_connection_error(venv: Path) -> None:
    code = ("import muster\n"
            "try:\n    muster.Store('127.0.0.1', 9, timeout=0.3)\n"
            "except ConnectionError as e:\n    print(type(e).__name__, e.code, e)\n")
    out = run(venv / "bin/python", "-c", code).stdout
    assert out.startswith("MusterConnectionError MUSTER_EREFUSED") and "127.0.0.1:9" in out
