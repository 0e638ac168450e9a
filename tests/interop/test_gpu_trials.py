"""The trials that are for machines with GPUs, as far as they go without one."""
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parents[1] / "gpu" / "run"


def test_the_same_jobs_on_the_cpu(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = subprocess.run([RUN, "--cpu", "--only=plain,killed_warm,warm_untouched,memory,virtual,numa,gone",
                           f"--report={report}", f"--python={sys.executable}"], text=True, capture_output=True,
                          timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    seen = {t["trial"]: t["result"] for t in json.loads(report.read_text())["trials"]}
    assert seen.pop("numa") == "needs a GPU"
    assert len(seen) == 6 and set(seen.values()) == {"as it should"}


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="has a GPU, perhaps")
def test_a_machine_without_gpus_is_told_what_is_needed() -> None:
    done = subprocess.run([RUN, f"--python={sys.executable}"], text=True, capture_output=True, timeout=100)
    assert done.returncode == 2 and "sees 0 GPUs" in done.stderr and "--cpu" in done.stderr


def test_a_trial_that_does_not_go_as_it_should_is_a_failure(tmp_path: Path) -> None:
    """A program that is not muster."""
    report = tmp_path / "report.json"
    done = subprocess.run([RUN, "--cpu", "--only=plain", "--muster=/bin/false", f"--report={report}",
                           f"--python={sys.executable}"], text=True, capture_output=True, timeout=100,
                          env=dict(os.environ))
    assert done.returncode == 1 and "NOT as it should" in done.stdout and "exit code 1" in report.read_text()
