"""muster.torch: its backend beside torch's own, and what it says without torch."""
from __future__ import annotations

import sys
from pathlib import Path

from wheels import run


def python(env: dict[str, str], code: str, *args: object, ok: bool = True):
    return run(sys.executable, "-c", code, *args, env=env, ok=ok)


BACKEND = """
import muster
from muster.torch import MusterRendezvousBackend
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousStateError
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed import TCPStore

server = muster.Store("127.0.0.1", 0, serve=True)
ours = MusterRendezvousBackend(muster.Store("127.0.0.1", server.port), "run")
theirs = C10dRendezvousBackend(TCPStore("127.0.0.1", server.port, is_master=False), "run")
assert ours.name == "muster"
assert ours.get_state() is None
assert ours.set_state(b"x", b"no such token") is None          # nothing there: not written
state, token, won = ours.set_state(b"one")
assert (state, won) == (b"one", True)
assert theirs.get_state() == (b"one", token)                     # torch reads the same
state2, token2, won = theirs.set_state(b"two", token)
assert won
assert ours.set_state(b"three", token) == (b"two", token2, False)  # fenced by the token
assert ours.set_state(b"three", 7) == (b"two", token2, False)      # no token of ours
assert ours.set_state(b"three") == (b"two", token2, False)         # something is there
assert ours.set_state(b"three", token2)[2] is True
server.set("torch.rendezvous.run", "###")
try:
    ours.get_state()
except RendezvousStateError:
    pass
else:
    raise AssertionError("corrupt state was read")
try:
    MusterRendezvousBackend(server, "")
except ValueError as e:
    assert str(e) == "The run id must be a non-empty string."
client = muster.Store("127.0.0.1", server.port, timeout=5)
mine = MusterRendezvousBackend(client, "other")
server.close()
try:
    mine.get_state()
except RendezvousConnectionError as e:
    assert "127.0.0.1" in str(e)
else:
    raise AssertionError("no connection error")
print("all well")
"""


def test_the_backend_keeps_torchs_contract(env: dict[str, str]) -> None:
    assert python(env, BACKEND).stdout == "all well\n"


def test_without_torch_the_plug_in_says_so(venv: Path) -> None:
    done = run(venv / "bin/python", "-c", "import muster.torch", ok=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "ImportError: muster.torch needs PyTorch 2.6 or newer, which cannot be imported here")
