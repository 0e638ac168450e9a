"""What the tests of the wheel share."""
from __future__ import annotations

import socket
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(*argv: object, ok: bool = True, **kwargs) -> subprocess.CompletedProcess[str]:
    kwargs = {"text": True, "capture_output": True, "timeout": 240} | kwargs
    done = subprocess.run([str(a) for a in argv], **kwargs)
    if ok:
        assert done.returncode == 0, f"{argv}:\n{done.stdout}\n{done.stderr}"
    return done


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]
