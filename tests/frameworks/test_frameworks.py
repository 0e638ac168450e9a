"""Jobs of Accelerate, Lightning, DeepSpeed, transformers and torchx, started by muster where torchrun was.

The frameworks are the real ones, from build/frameworks, with the torch of build/venv.
"""
from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
BIN = ROOT / "build/frameworks/bin"
MUSTER = ROOT / "build/muster"


@pytest.fixture()
def env(tmp_path: Path) -> dict[str, str]:
    """Nothing of the user's: neither configuration nor caches, nor a Slurm job around us."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "SLURM_", "HF_"))}
    home = tmp_path / "home"
    home.mkdir()
    return dict(kept, HOME=str(home), PYTHON_EXEC=str(BIN / "python"), OMP_NUM_THREADS="1",
                PYTHONDONTWRITEBYTECODE="1")


def run(env: dict[str, str], *argv: object, cwd: Path) -> str:
    done = subprocess.run([str(a) for a in argv], env=env, cwd=cwd, text=True, timeout=240,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_accelerate_trains_with_ddp(env: dict[str, str], tmp_path: Path) -> None:
    state = tmp_path / "state"
    out = run(env, MUSTER, "run", "--nproc-per-node=2", "--rdzv-id=job",
              "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0",
              HERE / "train_accelerate.py", state, cwd=tmp_path)
    assert sorted(line for line in out.splitlines() if line.startswith("rank")) == [
        f"rank {r} of 2 MULTI_CPU DistributedDataParallel steps 12 learned True same True "
        "run job" for r in (0, 1)]
    assert {"model.safetensors", "optimizer.bin", "random_states_0.pkl",
            "random_states_1.pkl"} <= {p.name for p in state.iterdir()}


def test_lightning_finds_its_environment_and_its_checkpoint(env, tmp_path: Path) -> None:
    out = run(env, MUSTER, "run", "--standalone", "--nproc-per-node=2",
              HERE / "train_lightning.py", tmp_path / "root", cwd=tmp_path)
    said = sorted(line for line in out.splitlines() if line.startswith("rank"))
    assert said == [f"rank {r} of 2 TorchElasticEnvironment epoch {e} step {4 * e}"
                    for r in (0, 1) for e in (2, 3)]
    assert sorted(p.name for p in (tmp_path / "root/checkpoints").iterdir()) == [
        "epoch=1-step=8.ckpt", "epoch=2-step=12.ckpt"]


def test_pandas_and_pyarrow_leave_no_thread(env, tmp_path: Path) -> None:
    """pyarrow's allocator has one by default, and a process with threads cannot be forked."""
    (tmp_path / "w.py").write_text("import os, sys\nprint('HAD', 'pandas' in sys.modules, 'pyarrow' in sys.modules, "
                                   "os.environ.get('JE_ARROW_MALLOC_CONF'), flush=True)\n"
                                   "import pandas\nassert pandas.DataFrame({'x': [1, 2]}).convert_dtypes(dtype_backend='pyarrow').x.sum() == 3\n")
    out = run(env, MUSTER, "run", "--warm=pandas,pyarrow", "w.py", cwd=tmp_path)
    assert out == "HAD True True None\n"


WARM = {
    "lightning": "rank %d of 2 TorchElasticEnvironment epoch 3 step 12",
    "clm": "rank %d of 2 blocks 96 step 4 learns True",
    "deepspeed": "rank %d of 2 DeepSpeedEngine steps 12 learned True",
}


@pytest.mark.parametrize("name", WARM)
def test_the_second_warm_start_imports_less(env, tmp_path: Path, name: str) -> None:
    """--warm=auto: what the first start has learned, the interpreter imports once for all workers of the second, without
    trying twice; their own imports are what is left. The times are printed, not judged."""
    (tmp_path / "cache").mkdir()
    env.update(XDG_CACHE_HOME=str(tmp_path / "cache"), HF_HUB_OFFLINE="1", LOGLEVEL="INFO")
    own, held = [], []
    for start in range(2):
        out = run(env, MUSTER, "run", "--standalone", "--nproc-per-node=2", "--warm=auto",
                  HERE / f"train_{name}.py", tmp_path / f"out{start}", cwd=tmp_path)
        for rank in (0, 1):
            assert WARM[name] % rank in out, out  # not a line: transformers writes its words and their ends apart
        assert "ordinary way" not in out and "left out" not in out, out
        own += [max(int(n) for n in re.findall(r"^imported (\d+) modules", out, re.M))]
        held += [int(n) for n in re.findall(r"the warm interpreter is ready .* and (\d+) modules", out)]
        print(name, start, re.findall(r"^imported .*", out, re.M))
    assert len(held) == 2 and held[1] > held[0] + own[0] // 4, (own, held)
    assert own[1] < own[0] * 3 // 4, (own, held)


def test_torchx_finds_muster_under_torchruns_name(env, tmp_path: Path) -> None:
    """Its component dist.ddp runs `torchrun`: two nodes with two workers each."""
    links = tmp_path / "bin"
    links.mkdir()
    (links / "torchrun").symlink_to(MUSTER)
    env["PATH"] = f"{links}:{BIN}:{env['PATH']}"
    out = run(env, BIN / "torchx", "run", "-s", "local_cwd", "dist.ddp", "-j", "2x2",
              "--script", "train_torchx.py", cwd=HERE)
    plain = re.sub(r"\x1b\[[\d;]*m", "", out)
    assert sorted(re.findall(r"\]:(rank.*)", plain)) == [
        f"rank {r} sum 4 under muster" for r in range(4)], out
