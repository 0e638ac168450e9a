"""What a user does with the wheel, on a machine with nothing but it: prints what was seen."""
import os
import signal
import subprocess
import sys
import time

import muster


def config(n):
    return muster.LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=n, max_restarts=0)


def times(x):
    return x * int(os.environ["RANK"])


def fail(rank):
    if int(os.environ["RANK"]) == rank:
        raise KeyError("the reason")
    time.sleep(100)


def wait():
    with open("/job/pid." + os.environ["RANK"], "w") as f:
        f.write("here")
    time.sleep(100)


def processes():
    return {int(p) for p in os.listdir("/proc") if p.isdigit()}


def until(condition):
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def main():
    print(muster.elastic_launch(config(4), times)(10))
    try:
        muster.elastic_launch(config(2), fail)(1)
    except muster.ChildFailedError as e:
        rank, first = e.get_first_failure()
        print("rank", rank, "in fail" in first.message, first.message.splitlines()[-1])
    before = processes()
    parent = subprocess.Popen([sys.executable, __file__, "wait"], stderr=subprocess.PIPE)
    until(lambda: all(os.path.exists("/job/pid.%d" % r) for r in (0, 1)))
    parent.send_signal(signal.SIGINT)
    print(parent.communicate()[1].decode().splitlines()[-1])
    until(lambda: processes() == before)
    print("nothing left")
    with muster.Store("127.0.0.1", 0, serve=True) as s:
        s.set("k", "v")
        print(s.get("k"))


if __name__ == "__main__":
    if sys.argv[1:] == ["wait"]:
        muster.elastic_launch(config(2), wait)()
    else:
        main()
