"""The quick starts for containers: their YAML is whole, and what they set amounts to a job of two
nodes that find each other. Clusters and registries are not here; --print-config is."""
from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
MUSTER = ROOT / os.environ.get("MUSTER_BUILD", "build") / "muster"
EXAMPLES = ROOT / "examples"
YAML = [*sorted(EXAMPLES.rglob("*.yaml")), *sorted((ROOT / ".github").rglob("*.yml"))]


def documents(path: Path) -> list[dict]:
    return list(yaml.safe_load_all(path.read_text()))


def amounts_to(words: list[str], env: dict[str, str]) -> dict:
    """What `muster run` makes of a container's arguments and environment."""
    done = subprocess.run([MUSTER, "run", "--print-config", *words], text=True, capture_output=True, check=False,
                          env={"PATH": os.environ["PATH"], **env})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["config"]


def variables(container: dict, **filled_in: str) -> dict[str, str]:
    """The container's environment; what a pod's fields fill in is given by name."""
    return {e["name"]: e["value"] if "value" in e else filled_in[e["valueFrom"]["fieldRef"]["fieldPath"].split(".")[-1]]
            for e in container["env"]}


@pytest.mark.parametrize("path", YAML, ids=lambda p: p.name)
def test_it_is_yaml(path):
    for document in documents(path):
        assert isinstance(document, dict)
        if path.parent.name == "kubernetes":
            assert {"apiVersion", "kind", "metadata", "spec"} == set(document)


def check_pods(pod: dict, names: list[str]) -> None:
    """One group, of which exactly the pod in the endpoint is the host, ranks by index."""
    (container,) = pod["containers"]
    assert pod["terminationGracePeriodSeconds"] > 30
    for index, _ in enumerate(names):
        env = {**variables(container, podIP=f"10.0.0.{index + 1}"), "JOB_COMPLETION_INDEX": str(index)}
        config = amounts_to(container["args"], env)
        rdzv = config["rdzv"]
        assert (rdzv["min_nodes"], rdzv["max_nodes"], config["nproc"]) == (2, 2, 2)
        assert (rdzv["backend"], rdzv["run_id"]) == ("c10d", "train")
        assert rdzv["endpoint"] == f"{names[0]}:29400"
        assert rdzv["local_addr"] == f"10.0.0.{index + 1}"
        assert rdzv["options"]["node_order"] == str(index)
        assert rdzv["options"]["read_timeout"] == "600"
        assert config["argv"] == [["hello"], ["hello"]]


def test_indexed_job():
    service, job = documents(EXAMPLES / "kubernetes/indexed-job.yaml")
    spec, name = job["spec"], job["metadata"]["name"]
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"] == 2
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["selector"] == {"job-name": name}
    pod = spec["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    check_pods(pod, [f"{name}-{i}.{pod['subdomain']}" for i in range(2)])


def test_jobset():
    (jobset,) = documents(EXAMPLES / "kubernetes/jobset.yaml")
    (job,) = jobset["spec"]["replicatedJobs"]
    spec, name = job["template"]["spec"], jobset["metadata"]["name"]
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"] == 2
    assert jobset["spec"]["network"]["enableDNSHostnames"]
    check_pods(spec["template"]["spec"], [f"{name}-{job['name']}-0-{i}.{name}" for i in range(2)])


def test_elastic_jobset():
    """Names and ranks come from the pods' own names: here by a host name and a hosts file in namespaces of their own."""
    (jobset,) = documents(EXAMPLES / "kubernetes/jobset-elastic.yaml")
    (job,) = jobset["spec"]["replicatedJobs"]
    spec, name = job["template"]["spec"], jobset["metadata"]["name"]
    pod, rules = spec["template"]["spec"], spec["podFailurePolicy"]["rules"]
    (container,) = pod["containers"]
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"] == 4
    assert jobset["spec"]["network"]["enableDNSHostnames"] and pod["restartPolicy"] == "Never"
    assert {r["action"]: r["onExitCodes"]["values"] for r in rules if "onExitCodes" in r} == {"FailJob": [2, 93], "Ignore": [75]}
    assert all(r["onExitCodes"]["containerName"] == container["name"] for r in rules if "onExitCodes" in r)
    if os.geteuid() != 0:
        pytest.skip("namespaces for the pods' names need root")
    for index in range(4):
        host = f"{name}-{job['name']}-0-{index}"
        env = {**variables(container, podIP=f"10.0.0.{index + 1}"), "JOB_COMPLETION_INDEX": str(index), "PATH": os.environ["PATH"]}
        script = (f"hostname {host}; echo '10.0.0.{index + 1} {host}.{name}.ns.svc {host}' > /tmp/hosts; "
                  f"mount --bind /tmp/hosts /etc/hosts; exec {MUSTER} run --print-config {' '.join(container['args'])}")
        done = subprocess.run(["unshare", "--uts", "--mount", "sh", "-c", f"mount -t tmpfs none /tmp && {script}"], env=env, text=True,
                              capture_output=True)
        assert done.returncode == 0, done.stderr
        rdzv = json.loads(done.stdout)["config"]["rdzv"]
        assert (rdzv["min_nodes"], rdzv["max_nodes"], rdzv["backend"], rdzv["run_id"]) == (2, 4, "c10d", "k8s-train-node-0")
        assert rdzv["endpoint"].startswith(f"{name}-{job['name']}-0-0.{name}.ns.svc:")
        assert rdzv["options"]["node_order"] == str(index) and rdzv["options"]["is_host"] == ("true" if index == 0 else "false")


def test_trainjob():
    """The runtime's variables are those of its documentation."""
    (job,) = documents(EXAMPLES / "kubernetes/trainjob.yaml")
    trainer = job["spec"]["trainer"]
    assert trainer["command"] == ["muster", "run"]
    for rank in range(trainer["numNodes"]):
        env = {"PET_NNODES": str(trainer["numNodes"]), "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
               "PET_NODE_RANK": str(rank), "PET_MASTER_ADDR": "train-node-0-0.train", "PET_MASTER_PORT": "29400",
               **variables(trainer)}
        config = amounts_to(trainer["args"], env)
        rdzv = config["rdzv"]
        assert (rdzv["backend"], rdzv["endpoint"]) == ("static", "train-node-0-0.train:29400")
        assert (rdzv["min_nodes"], rdzv["max_nodes"], config["nproc"]) == (2, 2, 2)
        assert (rdzv["options"]["rank"], rdzv["options"]["timeout"]) == (rank, "900")


def test_compose():
    (compose,) = documents(EXAMPLES / "docker/compose.yaml")
    services = compose["services"]
    for name, service in services.items():
        assert service["hostname"] == name
        assert (ROOT / "examples/docker" / service["build"]["context"]).resolve() == ROOT
        assert (ROOT / service["build"]["dockerfile"]).is_file()
        rdzv = amounts_to(service["command"], service["environment"])["rdzv"]
        host, _, port = rdzv["endpoint"].partition(":")
        assert host in services and port == "29400"
        assert (rdzv["backend"], rdzv["min_nodes"]) == ("c10d", len(services))


def test_the_dockerfile_copies_what_exists():
    for line in (EXAMPLES / "docker/Dockerfile").read_text().splitlines():
        words = line.split()
        if words[:1] == ["COPY"] and not words[1].startswith("--"):
            assert (ROOT / words[1]).exists(), line
    assert "muster" in (ROOT / "Makefile").read_text().partition("\nstatic:")[2].partition("\n\n")[0]


def test_the_worker_of_the_examples():
    """Two nodes on this machine, as compose.yaml has them but for the names."""
    env = {**os.environ, **documents(EXAMPLES / "docker/compose.yaml")[0]["services"]["node0"]["environment"],
           "PET_RDZV_ENDPOINT": "127.0.0.1:0", "PET_NNODES": "1"}
    done = subprocess.run([MUSTER, "run", "--no-python", EXAMPLES / "docker/hello.sh"], env=env, text=True,
                          capture_output=True, check=True)
    assert sorted(line[:11] for line in done.stdout.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]


def test_ci_runs_targets_that_exist():
    targets = {line.split(":")[0] for line in (ROOT / "Makefile").read_text().splitlines() if "## " in line}
    (ci,) = documents(ROOT / ".github/workflows/ci.yml")
    steps = [step["run"] for job in ci["jobs"].values() for step in job["steps"] if "run" in step]
    made = {word for step in steps if "make" in step.split() for word in step.split("make ")[-1].split()[:1]}
    assert {"check", "test", "deps"} <= made <= targets | {"python3"}
    (release,) = documents(ROOT / ".github/workflows/release.yml")
    (line,) = [step["run"] for step in release["jobs"]["files"]["steps"] if step.get("run", "").startswith("make ")]
    assert set(line.split()[1:]) <= targets and "static-aarch64" in line
