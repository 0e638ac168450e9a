"""muster.torch: what it says without a torch, and with one that will not do."""
from __future__ import annotations

import os
from pathlib import Path

import pytest
from wheels import run


@pytest.mark.parametrize(("version", "more", "says"), [
    ("2.5.1", "", "muster.torch needs PyTorch 2.6 or newer; this is 2.5.1: "),
    ("1.13.0a0+git1", "", "muster.torch needs PyTorch 2.6 or newer; this is 1.13.0a0+git1: "),
    ("unknown", "", "muster.torch needs PyTorch 2.6 or newer; this is unknown: "),
    ("2.99.0", "class distributed:\n    is_available = staticmethod(lambda: False)",
     "muster.torch needs PyTorch 2.6 or newer, built with torch.distributed; "),
    ("2.99.0", "class distributed:\n    is_available = staticmethod(lambda: True)",
     "muster.torch does not know this PyTorch, it seems: "),
])
def test_a_torch_that_will_not_do(venv: Path, tmp_path: Path, version, more, says) -> None:
    """A stand-in: a real torch of old is larger than all of our tests."""
    (tmp_path / "torch.py").write_text(f"__version__ = {version!r}\n{more}\n")
    done = run(venv / "bin/python", "-c", "import muster.torch", ok=False,
               env=dict(os.environ, PYTHONPATH=str(tmp_path)))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: " + says)


def test_without_torch_the_plug_in_says_so(venv: Path) -> None:
    done = run(venv / "bin/python", "-c", "import muster.torch", ok=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "ImportError: muster.torch needs PyTorch 2.6 or newer, which cannot be imported here")
