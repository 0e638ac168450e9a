"""What a person sees while nodes gather: one line on a terminal, few in a log."""
from __future__ import annotations

import re
import signal
import subprocess

import pytest
from screens import MUSTER, free_port, screen  # noqa: F401 (a fixture)

BACK = "\033[A\r\033[K"
COLOUR = re.compile(r"\033\[\d+m")


def command(port: int, *, nnodes: str = "2", conf: str = "join_timeout=60") -> list[str]:
    return [MUSTER, "run", f"--nnodes={nnodes}", "--rdzv-backend=c10d",
            f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job", f"--rdzv-conf={conf}",
            "--local-addr=127.0.0.1", "--no-python", "true"]


def test_a_line_on_a_terminal_is_kept_up_to_date(screen) -> None:
    port = free_port()
    first = screen(command(port))
    text = first.read(r"waiting \d+ s(.|\n)*waiting \d+ s.*\n")  # a whole line; some may be left out
    text = re.sub(r"^.*this job has no secret.*\n", "", text)
    lines = [line for line in text.split(BACK) if "waiting" in line]
    assert len(lines) >= 2 and all(line.count("\n") == 1 for line in lines), "not rewritten"
    assert re.search(r"waiting \d+ s: 1 of 2 nodes are here, 1 missing "
                     r"\(until \d\d:\d\d:\d\d, \d+ s more\); her", lines[-1])
    assert all(len(COLOUR.sub("", line).strip()) <= 79 for line in lines), "it would wrap"
    assert COLOUR.search(text)
    second = subprocess.run(command(port), capture_output=True, text=True, timeout=100)
    assert second.returncode == 0, second.stderr
    text = first.read(r"the group is complete after .* 2 nodes")
    assert first.process.wait(60) == 0
    # The line is gone before anything else is said.
    assert re.search(re.escape(BACK) + r"(\033\[\d+m)?muster: .*the group is complete", text)


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"NO_COLOR": "1", "COLORTERM": "yes"}])
def test_no_colour_if_somebody_minds(screen, env: dict[str, str]) -> None:
    text = screen(command(free_port(), conf="join_timeout=4"), **env).read("could not join")
    assert "1 of 2 nodes are here" in text and not COLOUR.search(text)


def test_a_terminal_that_cannot_rewrite_gets_a_log(screen) -> None:
    first = screen(command(free_port()), TERM="dumb")
    assert "\033" not in first.read(r"1 of 2 nodes are here, 1 missing \(until [^)]*\); here: 127.0.0.1")


def test_a_narrow_terminal_shows_the_counts(screen) -> None:
    first = screen(command(free_port()), columns=60)
    assert "waiting 1 s: 1 of 2 nodes are here, 1 missing (until " in first.read(r"waiting 1 s.*\n")


def test_a_line_gives_way_to_what_ends_the_wait(screen) -> None:
    text = screen(command(free_port(), conf="join_timeout=3")).read("could not join")
    assert re.search(r"waiting \d s.*\r\n" + re.escape(BACK) + ".*could not join", text)


def test_a_shell_finds_its_place_after_a_signal(screen) -> None:
    first = screen(command(free_port()))
    text = first.read("waiting \\d+ s.*\n")
    first.process.send_signal(signal.SIGTERM)
    assert first.process.wait(60) != 0 and text.endswith("\n")


def test_the_store_that_does_not_answer(screen) -> None:
    port = free_port()
    text = screen(command(port, conf="is_host=0,read_timeout=3")).read("refused")
    assert re.search(f"waiting \\d+ s: the store at 127.0.0.1:{port} has not been reached \\(until ", text)


def test_a_log_gets_few_lines_without_colours() -> None:
    """The first after five seconds, the next half a minute later."""
    done = subprocess.run(command(free_port(), conf="join_timeout=9"), capture_output=True,
                          text=True, timeout=100)
    assert done.returncode == 1
    said = [line for line in done.stderr.splitlines() if "nodes are here" in line]
    assert len(said) == 1 and re.search(r"1 of 2 nodes are here, 1 missing \(until .*\); here: 127.0.0.1",
                                        said[0]), done.stderr
    assert "\033" not in done.stderr and "\r" not in done.stderr


def test_a_node_that_comes_in_time_says_nothing() -> None:
    port = free_port()
    nodes = [subprocess.Popen(command(port), stderr=subprocess.PIPE, text=True)
             for _ in range(2)]
    said = [n.communicate(timeout=100)[1] for n in nodes]
    assert [n.returncode for n in nodes] == [0, 0], said
    assert "waiting" not in "".join(said)


def test_the_last_call_and_a_spare(screen) -> None:
    """Two are enough, three may come, and the fourth is a spare."""
    port = free_port()
    conf = "join_timeout=60,last_call_timeout=50"
    sleeper = [*command(port, nnodes="2:3", conf=conf)[:-1], "sleep", "1000"]
    nodes = [screen(sleeper) for _ in range(2)]
    for n in nodes:
        n.read(r"2 of at most 3 nodes are here \(starting at \d\d:\d\d:\d\d, \d+ s more\)")
    nodes += [screen(sleeper)]
    for n in nodes[:2]:
        n.read("the group is complete")
    spare = screen(sleeper)
    spare.read(r"waiting \d+ s: a spare, since all 3 places are taken")
    for n in [*nodes, spare]:
        n.process.terminate()
    for n in [*nodes, spare]:
        n.process.wait(60)
