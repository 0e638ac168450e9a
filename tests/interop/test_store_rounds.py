"""A store that lives through many rounds of a job keeps the keys of the last two."""
from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MUSTER = str(ROOT / os.environ.get("MUSTER_BUILD", "build") / "muster")
os.environ["MUSTER_LIBRARY"] = str(ROOT / "build/libmuster.so.0")
sys.path.insert(0, str(ROOT / "python/src"))
import muster  # noqa: E402


def test_old_rounds_are_forgotten() -> None:
    server = subprocess.Popen([MUSTER, "store", "--bind", "127.0.0.1", "--port", "0"],
                              stdout=subprocess.PIPE, text=True)
    try:
        port = int(server.stdout.readline().rsplit(":", 1)[1])
        job = subprocess.run(
            [MUSTER, "run", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
             "--rdzv-id=job", "--local-addr=127.0.0.1", "--max-restarts=6", "--no-python",
             "false"], capture_output=True, text=True, timeout=200)
        assert job.returncode == 1 and "failed (exitcode: 1)" in job.stderr, job.stderr
        store = muster.Store("127.0.0.1", port, timeout=30)
        keys = [k.decode() if isinstance(k, bytes) else k for k in store.list_keys()]
        rounds = {int(m[1]) for k in keys if (m := re.match(r"torch\.rendezvous\.job\.(\d+)/",
                                                            k))}
        assert rounds <= {5, 6}, keys  # nodes of ours need no keys; the end may have been heard, or not
        store.close()
    finally:
        server.terminate()
        assert server.wait(30) == 0
