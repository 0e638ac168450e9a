"""Our file store beside torch's FileStore: the same bytes, and one file for both."""
from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from store_cli import Cli, StoreError

PATIENCE = timedelta(seconds=30)


def script_ours(path, world_size: int) -> bytes:
    """Returns the file as it was before the store closed."""
    with Cli("file", path, world_size, 20000) as c:
        c.call("set", "k", "v")
        c.call("set", "k", b"\x00\xff" * 10)
        c.call("set", "e", "")
        assert c.add("n", 5) == 5
        assert c.add("n", -7) == -2
        assert c.add("e", 3) == 3
        assert c.call("cas", "cs", "", "A") == [b"A"]
        assert c.call("cas", "cs", "X", "C") == [b"A"]
        assert c.call("cas", "cs", "A", "B") == [b"B"]
        assert c.call("cas", "cs2", "Z", "C") == [b"Z"]
        c.call("append", "ap", "ab")
        c.call("append", "ap", "cd")
        c.call("mset", "m1", "x", "m2", "yy")
        assert c.call("mget", "m1", "m2") == [b"x", b"yy"]
        c.call("delete", "k")
        c.call("prefix", "pre")
        c.call("set", "k", "under")
        c.call("barrier", "b", 1, 20000)
        c.call("up")
        assert c.call("num") == [b"10"]
        return path.read_bytes()


def script_torchs(path, world_size: int) -> bytes:
    s = dist.FileStore(str(path), world_size)
    s.set("k", "v")
    s.set("k", b"\x00\xff" * 10)
    s.set("e", "")
    assert s.add("n", 5) == 5
    assert s.add("n", -7) == -2
    assert s.add("e", 3) == 3
    assert s.compare_set("cs", "", "A") == b"A"
    assert s.compare_set("cs", "X", "C") == b"A"
    assert s.compare_set("cs", "A", "B") == b"B"
    assert s.compare_set("cs2", "Z", "C") == b"Z"
    s.append("ap", "ab")
    s.append("ap", "cd")
    s.multi_set(["m1", "m2"], ["x", "yy"])
    assert s.multi_get(["m1", "m2"]) == [b"x", b"yy"]
    s.delete_key("k")
    p = dist.PrefixStore("pre", s)
    p.set("k", "under")
    p.barrier("b", 1, PATIENCE)
    assert s.num_keys() == 10
    return path.read_bytes()


def test_byte_for_byte(tmp_path):
    ours = script_ours(tmp_path / "ours", -1)
    theirs = script_torchs(tmp_path / "theirs", -1)
    assert ours == theirs
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert ours != (tmp_path / "ours").read_bytes(), "closing leaves its records"


@pytest.mark.parametrize("script", [script_ours, script_torchs])
def test_the_last_removes_the_file(tmp_path, script):
    script(tmp_path / "f", 1)
    assert not (tmp_path / "f").exists()
    script(tmp_path / "f", 2)
    assert (tmp_path / "f").exists()
    Cli("file", tmp_path / "f", 2, 20000).close()
    assert not (tmp_path / "f").exists()


def test_ours_and_theirs_count_each_other(tmp_path):
    path = tmp_path / "f"
    theirs = dist.FileStore(str(path), 2)
    with Cli("file", path, 2, 20000) as c:
        theirs.set("k", "from torch")
        assert c.get("k") == b"from torch"
        c.call("set", "k", "from C")
        assert theirs.get("k") == b"from C"
        assert sorted(c.call("list")) == [b"k"]
    assert path.exists()
    del theirs
    assert not path.exists()


ADDER = """
import sys, torch.distributed as dist
s = dist.FileStore(sys.argv[1], -1)
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[2])):
    s.add("n", 1)
print("done", flush=True)
"""


def test_interleaved_adds(tmp_path):
    """Two processes of each kind on one counter; none is lost."""
    path, each = tmp_path / "f", 300
    theirs = [
        subprocess.Popen(
            [sys.executable, "-c", ADDER, path, str(each)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]
    ours = [Cli("file", path, -1, 60000, patience=90) for _ in range(2)]
    try:
        for p in theirs:
            assert p.stdout.readline() == "ready\n"
        for p in theirs:
            p.stdin.write("go\n")
            p.stdin.flush()
        sums = []
        for _ in range(each):
            for c in ours:
                c.send("add", "n", 1)
            sums += [int(c.answer()[0]) for c in ours]
        for p in theirs:
            assert p.stdout.readline() == "done\n"
        assert len(set(sums)) == len(sums)
        assert ours[0].get("n") == str(4 * each).encode()
    finally:
        for c in ours:
            c.close()
        for p in theirs:
            p.communicate()


def test_waits_see_torch_write(tmp_path):
    path = tmp_path / "f"
    theirs = dist.FileStore(str(path), -1)
    with Cli("file", path, -1, 20000) as c:
        for i in range(5):
            c.send("get", f"k{i}")
            time.sleep(0.02)
            theirs.set(f"k{i}", "v")
            assert c.answer() == [b"v"]
        c.send("wait", 20000, "a", "b")
        theirs.set("a", "1")
        theirs.set("b", "1")
        c.answer()
        with pytest.raises(StoreError, match="MUSTER_ETIMEDOUT: Wait timeout after 50ms"):
            c.call("wait", 50, "a", "missing")
        # and the other way round
        c.call("set", "ours", "v")
        assert theirs.get("ours") == b"v"


def test_barrier_with_torch(tmp_path):
    path = tmp_path / "f"
    theirs = dist.FileStore(str(path), -1)
    with Cli("file", path, -1, 20000) as c:
        c.send("barrier", "b", 2, 20000)
        theirs.barrier("b", 2, PATIENCE)
        c.answer()


def test_lock_held_by_another(tmp_path):
    """The call ends in time, and says why; the store goes on when the lock is free."""
    path = tmp_path / "f"
    with Cli("file", path, -1, 20000) as c:
        c.call("set", "k", "v")
        with open(path, "rb") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            c.call("timeout", 200)
            for call in (("set", "k", "w"), ("get", "k"), ("add", "n", 1), ("num",)):
                with pytest.raises(StoreError, match="ETIMEDOUT.*holds the file's lock"):
                    c.call(*call)
            c.call("timeout", 20000)
            c.send("add", "n", 1)
            time.sleep(0.05)
        assert c.answer() == [b"1"]
        assert c.get("k") == b"v"


def naps(pid: int) -> int:
    """How often its threads have gone to sleep so far."""
    count = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        count += int(re.search(r"\nvoluntary_ctxt_switches:\s*(\d+)", status.read_text())[1])
    return count


def test_who_waits_sleeps_while_the_lock_is_held(tmp_path):
    """It tries every ten milliseconds to have its look, and not at all when it need not."""
    def wakes_per_second(seconds: float) -> float:
        start, before = time.monotonic(), naps(c.proc.pid)
        time.sleep(seconds)
        return (naps(c.proc.pid) - before) / (time.monotonic() - start)

    path = tmp_path / "f"
    with Cli("file", path, -1, 20000) as c:
        c.call("set", "k", "v")
        c.send("wait", 3000, "missing")
        time.sleep(0.3)
        with open(path, "rb") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            time.sleep(1)  # It looks now and then even if nothing seems to happen.
            assert wakes_per_second(1) < 300
            with pytest.raises(StoreError, match="ETIMEDOUT"):
                c.answer()
            assert wakes_per_second(0.5) < 100
        assert c.get("k") == b"v"


def test_lock_held_while_opening_and_closing(tmp_path):
    path = tmp_path / "f"
    path.touch()
    with open(path, "rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        c = Cli("file", path, 1, 20000, wait=False)
        with pytest.raises(StoreError, match="ETIMEDOUT.*holds the file's lock"):
            Cli("file", path, 1, 100)
    c.ready()
    assert c.add("n", 1) == 1
    c.close()
    assert not path.exists()


@pytest.mark.parametrize("cut", [1, 3, 5, 9])
def test_cut_off_record(tmp_path, cut):
    """torch spins for ever on it."""
    path = tmp_path / "f"
    with Cli("file", path, -1, 20000) as c:
        c.call("set", "k", "value")
        size = path.stat().st_size
        with open(path, "ab") as out:
            out.write(struct.pack("<I2sI", 2, b"/x", 5)[:cut])
        for call in (("get", "k"), ("set", "k", "w"), ("wait", 5000, "y"), ("list",)):
            with pytest.raises(StoreError, match=f"ESTATE.*at byte {size}, is cut off"):
                c.call(*call)
        os.truncate(path, size)
        assert c.get("k") == b"value"
    with open(path, "ab") as out:
        out.write(b"\xff\xff\xff\xff")
    with pytest.raises(StoreError, match="ESTATE"):
        Cli("file", path, -1, 20000)


def test_wait_is_told_of_a_cut_off_record(tmp_path):
    path = tmp_path / "f"
    with Cli("file", path, -1, 20000) as c:
        c.send("wait", 20000, "k")
        time.sleep(0.05)
        with open(path, "ab") as out:
            out.write(b"\x02\x00")
        with pytest.raises(StoreError, match="ESTATE"):
            c.answer()


def test_removed_and_made_anew(tmp_path):
    path = tmp_path / "f"
    with Cli("file", path, -1, 20000) as c:
        c.call("set", "old", "v")
        path.unlink()
        c.call("timeout", 100)
        with pytest.raises(StoreError, match="ETIMEDOUT.*No such file"):
            c.call("get", "old")
        c.call("timeout", 20000)
        c.send("get", "new")
        theirs = dist.FileStore(str(path), -1)
        theirs.set("new", "v")
        assert c.answer() == [b"v"]
        assert c.call("check", "old") == [b"0"]


def test_bad_paths(tmp_path):
    with pytest.raises(StoreError, match="MUSTER_ENOENT.*No such file or directory"):
        Cli("file", tmp_path / "no" / "such" / "folder", -1, 1000)
    with pytest.raises(StoreError, match="MUSTER_E(IO|ACCES).*[Ii]s a directory"):
        Cli("file", tmp_path, -1, 1000)


def test_full_disk(tmp_path):
    """Nothing of a record that did not fit stays behind."""
    mount = tmp_path / "small"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", mount], check=True)
    try:
        with Cli("file", mount / "f", -1, 20000) as c:
            c.call("set", "k", "v")
            size = (mount / "f").stat().st_size
            with pytest.raises(StoreError, match="MUSTER_EIO.*No space left"):
                c.call("big", "k", 200000)
            assert (mount / "f").stat().st_size == size
            assert c.get("k") == b"v"
            c.call("set", "k", "w")
            assert c.get("k") == b"w"
    finally:
        subprocess.run(["umount", mount], check=True)


def test_queues_are_refused(tmp_path):
    with Cli("file", tmp_path / "f", -1, 1000) as c:
        with pytest.raises(StoreError, match="ENOTSUP: queue support is not implemented"):
            c.call("push", "q", "v")


def test_hash_store():
    """The same calls in memory."""
    with Cli("hash", 20000) as c:
        c.call("set", "k", "v")
        c.call("clone")
        assert c.get("k") == b"v"
        c.call("up")
        c.call("prefix", "p")
        assert c.add("n", 3) == 3
        assert c.call("list") == [b"n"]
        c.call("up")
        assert sorted(c.call("list")) == [b"k", b"p/n"]
        c.call("set", "e", "")
        assert c.add("e", 2) == 2
        with pytest.raises(StoreError, match="EINVAL.*not a number"):
            c.call("add", "k", 1)
        with pytest.raises(StoreError, match="ETIMEDOUT: Wait timeout after 50ms"):
            c.call("wait", 50, "k", "missing")
        with pytest.raises(StoreError, match="ETIMEDOUT: barrier timeout after 50ms"):
            c.call("barrier", "b", 2, 50)
        c.call("push", "q", "1")
        assert c.call("pop", "q", 1) == [b"1"]
        with pytest.raises(StoreError, match="EEMPTY"):
            c.call("pop", "q", 0)
