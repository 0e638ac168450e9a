"""The pure parts of src/warm/server.py, by table."""
import importlib.util
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("warm_server", Path(__file__).resolve().parents[2] / "src/warm/server.py")
server = importlib.util.module_from_spec(spec)
spec.loader.exec_module(server)

SHAPES = [
    ((1, {}, []), ""),
    ((1, {7: "/data/set.bin", 8: "/dev/null", 9: "/dev/urandom", 10: "/memfd:x (deleted)"}, []), ""),
    ((2, {}, []), "1 more thread"),
    ((9, {}, []), "8 more threads"),
    ((1, {7: "socket:[123]"}, []), "an open socket"),
    ((1, {7: "anon_inode:[eventpoll]"}, []), "an open eventpoll"),
    ((1, {7: "anon_inode:[io_uring]"}, []), "an open io_uring"),
    ((1, {7: "anon_inode:inotify"}, []), "an open inotify"),
    ((1, {7: "pipe:[5]"}, []), "an open pipe"),
    ((1, {7: "locked:/data/lock"}, []), "a locked file (/data/lock)"),
    ((1, {7: "/dev/nvidiactl"}, []), "an open accelerator (/dev/nvidiactl)"),
    ((1, {7: "/dev/nvidia-uvm"}, []), "an open accelerator (/dev/nvidia-uvm)"),
    ((1, {7: "/dev/kfd"}, []), "an open accelerator (/dev/kfd)"),
    ((1, {7: "/dev/dri/renderD128"}, []), "an open accelerator (/dev/dri/renderD128)"),
    ((1, {7: "/dev/accel/accel0"}, []), "an open accelerator (/dev/accel/accel0)"),
    ((1, {}, [4711]), "a child process"),
    ((1, {}, [], "cuda is initialised"), "cuda is initialised"),
]


@pytest.mark.parametrize("shape, why", SHAPES)
def test_what_must_not_be_forked(shape, why):
    assert server.problem_of(*shape) == why


@pytest.mark.parametrize("before, after, without, want", [
    ({}, {}, (), {}),
    ({b"A": b"1"}, {b"A": b"1"}, (), {}),
    ({b"A": b"1"}, {b"A": b"2"}, (), {b"A": b"2"}),
    ({b"A": b"1"}, {}, (), {b"A": None}),
    ({}, {b"A": b"1", b"B": b"2"}, (b"B",), {b"A": b"1"}),
])
def test_what_changed_in_an_environment(before, after, without, want):
    assert server.difference(before, after, without) == want


def test_reads_of_the_rank_are_seen():
    import os
    with server.RankReads() as reads:
        os.environ.get("RANK"), "LOCAL_RANK" in os.environ, os.environb.get(b"TORCHELASTIC_RUN_ID")
        os.environ.get("TORCH_DISTRIBUTED_COMPILE_ON_ONE_RANK"), os.getenv("HOME")
    assert reads.seen == {"RANK", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"}
    with server.RankReads() as reads:
        pass
    os.environ.get("RANK")
    assert not reads.seen


def test_memory_is_looked_at_after_each_import(monkeypatch):
    import types
    monkeypatch.setattr(server, "tell", lambda *words: None)
    monkeypatch.setattr(server, "problem", lambda known: "")
    given = types.SimpleNamespace(modules=["json", "string"], optional=False, memory_kb=1 << 40, learn=False)
    server.import_all(given, set())
    given.memory_kb = 2048
    with pytest.raises(server.Refuse, match="json takes more than 2 MB"):
        server.import_all(given, set())
