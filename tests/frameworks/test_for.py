"""--for: programs of MPICH, JAX, XGBoost and TensorFlow, the real ones, on two hosts; they run, fail and are restarted.
The programs are those of examples/frameworks."""
from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/hosts"))
from rig import MUSTER, Process, Rig  # noqa: E402

EXAMPLES = ROOT / "examples/frameworks"
PYTHON = ROOT / "build/others/bin/python"  # scripts/deps makes it; jax shares no versions with build/frameworks
KEPT = ("PET_", "SLURM_", "MUSTER_", "PMI_", "JAX_", "OMPI_", "DMLC_", "TF_")


def clean_env(**more: str) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(KEPT)}
    return dict(env, OMP_NUM_THREADS="1", PYTHON_EXEC=str(PYTHON), **more)


def muster(*argv: object, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([MUSTER, "run", *map(str, argv)], env=clean_env(**env), text=True, timeout=240,
                          capture_output=True)


def on_two_hosts(rig: Rig, *argv: object, nproc: int = 2, backend: str = "c10d", **env: str) -> list[Process]:
    nodes = [h.start([MUSTER, "run", "--nnodes=2", f"--nproc-per-node={nproc}", f"--rdzv-backend={backend}",
                      "--rdzv-endpoint=node1:29400", "--rdzv-id=job", *([f"--node-rank={i}"] if backend == "static" else []),
                      *map(str, argv)],
                     **{"OMP_NUM_THREADS": "1", "PYTHON_EXEC": str(PYTHON), **env}) for i, h in enumerate(rig.hosts)]
    for n in nodes:
        n.wait(200)
    return nodes


def lines(nodes: list[Process], pattern: str) -> list[str]:
    return sorted(m for n in nodes for m in re.findall(pattern, n.output(), re.M))


def needs(module: str) -> None:
    done = subprocess.run([PYTHON, "-c", f"import {module}"], capture_output=True) if PYTHON.exists() else None
    if not done or done.returncode:
        pytest.skip(f"{PYTHON} has no {module}: it has no package for this Python, or (tensorflow, 1.5 GB) was not asked for")


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not shutil.which("mpicc.mpich"):
        pytest.skip("no mpicc.mpich (libmpich-dev)")
    program = tmp_path_factory.mktemp("mpi") / "mpi_ring"
    subprocess.run(["mpicc.mpich", "-o", program, EXAMPLES / "mpi_ring.c"], check=True)
    return program


GUIDE = re.findall(r"^muster run .*", (ROOT / "docs/guides/frameworks.md").read_text(), re.M)


@pytest.mark.parametrize("line", GUIDE)
def test_a_line_of_the_guide(line: str, ring: Path) -> None:
    assert len(GUIDE) == 5
    for module in re.findall(r"--for=(jax|xgboost)", line):
        needs(module)
    for path in EXAMPLES.iterdir():
        if not (ring.parent / path.name).exists():
            (ring.parent / path.name).symlink_to(path)
    done = subprocess.run(line, shell=True, cwd=ring.parent, text=True, capture_output=True, timeout=240,
                          env=clean_env(PATH=f"{Path(MUSTER).parent}:{os.environ['PATH']}"))
    assert done.returncode == 0, done.stderr
    wants = {"mpi_ring": "the ring has brought 4", "jax_sum": "process 1 of 2 has the sum 3", "xgboost": "rank 1 of 2 learned True",
             "TF_CONFIG": '1 of 2: {"cluster"', "OUT=": "part-1-of-2"}
    assert [want for word, want in wants.items() if word in line and want in done.stdout], done.stdout


# ---- MPI

@pytest.mark.parametrize("backend, encrypt", [("c10d", False), ("c10d", True), ("static", True)])
def test_two_hosts_are_one_mpi_world(ring: Path, tmp_path: Path, backend: str, encrypt: bool) -> None:
    (tmp_path / "token").write_text("a-token-that-nobody-else-has-0123456789\n")
    (tmp_path / "token").chmod(0o600)
    more = [f"--token-file={tmp_path / 'token'}", "--encrypt"] if encrypt else []
    with Rig(2) as rig:
        nodes = on_two_hosts(rig, "--for=mpi", *more, "--no-python", ring, backend=backend)
        assert [n.wait() for n in nodes] == [0, 0], [n.output() for n in nodes]
        assert lines(nodes, "^hello from.*") == [f"hello from rank {r} of 4" for r in range(4)]
        assert lines(nodes, "^the ring.*") == ["the ring has brought 4"]


def test_nodes_of_different_size(ring: Path) -> None:
    with Rig(2) as rig:
        common = ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=node1:29400", "--for=mpi", "--no-python", str(ring)]
        nodes = [h.start([MUSTER, "run", f"--nproc-per-node={n}", *common], OMP_NUM_THREADS="1")
                 for h, n in zip(rig.hosts, (1, 3))]
        assert [n.wait() for n in nodes] == [0, 0], [n.output() for n in nodes]
        assert lines(nodes, "^the ring.*") == ["the ring has brought 4"]


@pytest.mark.parametrize("kind, given, code", [("torch", 42, 42), ("cause", 42, 1), ("cause", 2, 93)])
def test_mpi_abort_ends_all_nodes_with_its_code(ring: Path, kind: str, given: int, code: int) -> None:
    with Rig(2) as rig:
        nodes = on_two_hosts(rig, "--for=mpi", f"--exit-codes={kind}", "--no-python", ring, given)
        assert [n.wait() for n in nodes] == [code, code], [n.output() for n in nodes]
        assert "rank 3 on" in nodes[0].output() and f"exited with code {given}" in nodes[0].output()
        for host in rig.hosts:
            assert host.processes() == {}


def test_mpi_restarts_on_two_hosts(ring: Path) -> None:
    with Rig(2) as rig:
        nodes = on_two_hosts(rig, "--for=mpi", "--max-restarts=1", "--no-python", ring, "3")
        assert [n.wait() for n in nodes] == [0, 0], [n.output() for n in nodes]
        assert lines(nodes, "^the ring.*") == ["the ring has brought 4"]


def test_a_rank_that_exits_without_finalize_ends_the_job(tmp_path: Path) -> None:
    if not shutil.which("mpicc.mpich"):
        pytest.skip("no mpicc.mpich (libmpich-dev)")
    (tmp_path / "early.c").write_text("""
        #include <mpi.h>
        #include <unistd.h>
        int main(int argc, char **argv)
        {
            int rank;
            MPI_Init(&argc, &argv);
            MPI_Comm_rank(MPI_COMM_WORLD, &rank);
            if (rank == 1)
                _exit(0);
            MPI_Barrier(MPI_COMM_WORLD);
            MPI_Finalize();
            return 0;
        }""")
    subprocess.run(["mpicc.mpich", "-o", "early", "early.c"], cwd=tmp_path, check=True)
    done = muster("--standalone", "--nproc-per-node=3", "--for=mpi", "--no-python", tmp_path / "early")
    assert done.returncode == 1, done
    assert re.search("rank 1 .*exited with code 0 without MPI_Finalize", done.stderr), done.stderr


def test_a_program_that_never_speaks_pmi_is_not_waited_for() -> None:
    done = muster("--standalone", "--nproc-per-node=2", "--for=mpi", "--no-python", "sh", "-c",
                  "echo $PMI_RANK of $PMI_SIZE by $PMI_FD; test -e /proc/self/fd/$PMI_FD")
    assert done.returncode == 0 and sorted(done.stdout.split("\n")) == ["", "0 of 2 by 3", "1 of 2 by 3"], done


def test_without_for_there_is_no_pmi() -> None:
    done = muster("--standalone", "--no-python", "sh", "-c", "env; test ! -e /proc/self/fd/3 && echo $0 $1", "${local_rank}",
                  "${rank} $${x} ${oc.env:HOME}")
    assert done.returncode == 0 and "PMI_" not in done.stdout and "JAX_" not in done.stdout, done
    assert done.stdout.endswith("0 ${rank} ${x} ${oc.env:HOME}\n"), done.stdout  # torchrun's $$ is $


def test_a_line_that_is_no_pmi_is_said() -> None:
    done = muster("--standalone", "--for=mpi", "--no-python", "sh", "-c", "echo what >&3; cat <&3")
    assert done.returncode == 0 and "rank 0 has sent a line without a command on PMI_FD" in done.stderr, done


def test_open_mpi_is_refused(tmp_path: Path) -> None:
    """A program that is linked to its library: which name that has is all that counts here."""
    (tmp_path / "mpi.c").write_text("int MPI_Init(void) { return 0; }\n")
    (tmp_path / "main.c").write_text("int MPI_Init(void);\nint main(void) { return MPI_Init(); }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libmpi.so.40", "-o", "libmpi.so.40", "mpi.c"], cwd=tmp_path, check=True)
    subprocess.run(["cc", "-o", "prog", "main.c", "libmpi.so.40"], cwd=tmp_path, check=True)
    done = muster("--standalone", "--nproc-per-node=2", "--for=mpi", "--no-python", tmp_path / "prog")
    assert done.returncode == 1 and "prog is linked to libmpi.so.40 of Open MPI, which takes its ranks by PMIx" in done.stderr


# ---- the others

def test_jax_on_two_hosts_fails_and_restarts() -> None:
    needs("jax")
    with Rig(2) as rig:
        nodes = on_two_hosts(rig, "--for=jax", "--max-restarts=1", "--restart-grace=1s", EXAMPLES / "jax_sum.py", "--fail-once")
        assert [n.wait() for n in nodes] == [0, 0], [n.output() for n in nodes]
        assert lines(nodes, "^process.*") == sorted(2 * [f"process {r} of 4 has the sum 10" for r in range(4)])
        assert lines(nodes, r"exit(?:ed with )?code:? 3"), [n.output() for n in nodes]  # which cause is told first is open


def test_xgboost_on_two_hosts_fails_and_restarts() -> None:
    needs("xgboost")
    with Rig(2) as rig:
        nodes = on_two_hosts(rig, "--for=xgboost", "--max-restarts=1", EXAMPLES / "xgboost_train.py", "--fail-once", nproc=1)
        assert [n.wait() for n in nodes] == [0, 0], [n.output() for n in nodes]
        said = lines(nodes, r"^rank \d of 2 learned True (.*)")
        assert len(said) == 2 and said[0] == said[1], said  # one model
        assert lines(nodes, r"exit(?:ed with )?code:? 3"), [n.output() for n in nodes]


def test_tensorflow_on_two_hosts_fails_and_restarts() -> None:
    needs("tensorflow")
    with Rig(2) as rig:
        nodes = on_two_hosts(rig, "--for=tf", "--max-restarts=1", EXAMPLES / "tf_sum.py", "--fail-once", nproc=1)
        assert [n.wait() for n in nodes] == [0, 0], [n.output() for n in nodes]
        assert lines(nodes, "^worker.*") == [f"worker {r} of 2 has the sum 3" for r in range(2)]
        assert lines(nodes, r"exit(?:ed with )?code:? 3"), [n.output() for n in nodes]


def test_tf_config_names_every_worker() -> None:
    with Rig(2) as rig:
        nodes = on_two_hosts(rig, "--for=tf", "--no-python", "sh", "-c", "echo \"$TF_CONFIG\"")
        said = [json.loads(t) for t in lines(nodes, r"^\{.*\}$")]
        workers = said[0]["cluster"]["worker"]
        assert sorted(c["task"]["index"] for c in said) == [0, 1, 2, 3] and all(c["cluster"]["worker"] == workers for c in said)
        hosts = [w.rpartition(":")[0] for w in workers]
        assert len(set(workers)) == 4 and hosts[0] == hosts[1] != hosts[2] == hosts[3], workers


def test_vllm_gets_its_arguments() -> None:
    with Rig(2) as rig:
        nodes = on_two_hosts(rig, "--for=vllm", "--no-python", "echo", "vllm", "serve", "m${node_rank}", nproc=1)
        out = lines(nodes, "^vllm.*")
        port = re.search(r"--master-port (\d+)", out[0])[1]
        first = re.search(r"--master-addr (\S+)", out[0])[1]
        assert out == [f"vllm serve m0 --nnodes 2 --node-rank 0 --master-addr {first} --master-port {port}",
                       f"vllm serve m1 --nnodes 2 --node-rank 1 --master-addr {first} --master-port {port} --headless"]


def test_what_the_user_has_set_wins_and_is_said() -> None:
    done = muster("--standalone", "--for=jax", "--env", "OMPI_COMM_WORLD_RANK=r${rank}", "--no-python", "sh", "-c",
                  "echo $JAX_COORDINATOR_ADDRESS $OMPI_COMM_WORLD_RANK $OMPI_COMM_WORLD_SIZE", JAX_COORDINATOR_ADDRESS="mine:1")
    assert done.stdout == "mine:1 r0 1\n", done
    assert "--for=jax leaves as you have set it: JAX_COORDINATOR_ADDRESS, OMPI_COMM_WORLD_RANK" in done.stderr


def test_env_on_the_command_line_in_a_file_and_in_a_variable(tmp_path: Path) -> None:
    (tmp_path / "env").write_text("# a comment\nA=file ${rank}\nB=${hostname}\n")
    done = muster("--standalone", f"--env-file={tmp_path / 'env'}", "--env", "A=${world_size}/${restart}", "--env", "C=$${rank}",
                  "--env", "HOME", "--no-python", "sh", "-c", "echo $A $B $C $HOME", HOME="/h")
    assert done.stdout in {f"1/0 {name} ${{rank}} /h\n" for name in (socket.gethostname(), socket.getfqdn())}, done
    done = muster("--standalone", "--no-python", "sh", "-c", "echo $A $B", MUSTER_ENV="A=1,,2,B=${local_rank}")
    assert done.stdout == "1,2 0\n", done
    done = muster("--standalone", "--env=A=${rnk}", "--no-python", "true")
    assert done.returncode == 1 and "--env A=${rnk}: there is no ${rnk} here, did you mean ${rank}?" in done.stderr, done
