"""What the tests of the wheel share."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/interop"))
from patience import clock  # noqa: E402,F401 (for whoever waits)
from ports import free_port  # noqa: E402,F401 (for whoever starts nodes)


def run(*argv: object, ok: bool = True, **kwargs) -> subprocess.CompletedProcess[str]:
    kwargs = {"text": True, "capture_output": True, "timeout": 240} | kwargs
    done = subprocess.run([str(a) for a in argv], **kwargs)
    if ok:
        assert done.returncode == 0, f"{argv}:\n{done.stdout}\n{done.stderr}"
    return done
