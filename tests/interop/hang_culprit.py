"""A worker of a small gloo training in which one rank gets stuck, in one of many ways.

KINDS lists them with commas, one for each attempt; VICTIM is the rank, or `here` on the node
whose second worker it is and `there` on the others. STEPS good steps come first. `moves` and `talks` get nobody stuck: each step takes PAUSE seconds on the victim.
"""
import ctypes
import multiprocessing
import os
import signal
import socket
import tempfile
import threading
import time

import torch
import torch.distributed as dist


def sleep():
    time.sleep(3600)


def fifo():
    path = tempfile.mktemp()
    os.mkfifo(path)
    with open(path) as f:  # nobody will ever write
        f.read()


def lock():
    held = threading.Lock()
    held.acquire()
    held.acquire()


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)


def uninterruptible():
    """vfork()'s parent sits in the kernel, in state D, until the child ends."""
    libc = ctypes.CDLL(None)
    if libc.vfork() == 0:
        libc.sleep(3600)
        libc._exit(0)


def gil():
    ctypes.PyDLL(None).sleep(3600)  # a C function that does not let go of the GIL


def loop():
    def check(x):
        return x + 1

    x = 0
    while x >= 0:
        x = check(x)


def blocked_socket():
    a, b = socket.socketpair()
    a.recv(1)
    b.close()


def slow():
    big = torch.ones(400, 400)
    for _ in range(10**9):
        big = torch.mm(big, big) / 400


def loader():
    """The process that prepares the data is dead, and nobody told the one that waits for it."""
    def prepare(q):
        q.put(1)
        time.sleep(3600)

    q = multiprocessing.get_context("fork").Queue()
    child = multiprocessing.get_context("fork").Process(target=prepare, args=(q,), daemon=True)
    child.start()
    q.get()
    os.kill(child.pid, signal.SIGKILL)
    q.get()


class Items(torch.utils.data.Dataset):
    """The seventh item never comes."""

    def __len__(self):
        return 64

    def __getitem__(self, i):
        if i == 7:
            lock()
        return torch.ones(1)


def stuck_loader():
    for _ in torch.utils.data.DataLoader(Items(), batch_size=1, num_workers=6):
        pass


def gil_thread():
    """A thread is in C code and does not let go of the GIL; the main thread wants it back."""
    threading.Thread(target=gil, name="holder", daemon=True).start()
    while True:
        time.sleep(0.01)


def mismatch():
    """The others wait in broadcast, for good."""
    dist.barrier()


def moves():
    time.sleep(float(os.environ.get("PAUSE", "1")))


def talks():
    """Alone at work for PAUSE seconds, with some output all the time."""
    by = time.monotonic() + float(os.environ.get("PAUSE", "1"))
    while time.monotonic() < by:
        os.write(1, b".")
        time.sleep(0.1)


KINDS = {f.__name__: f for f in (sleep, fifo, lock, stop, uninterruptible, gil, loop, blocked_socket,
                                 slow, loader, stuck_loader, gil_thread, mismatch, moves, talks)}


def train_step():
    dist.all_reduce(torch.ones(1000))


def victim_of(rank: int) -> int:
    given = os.environ.get("VICTIM", "1")
    if given not in ("here", "there"):
        return int(given)
    found = torch.tensor([rank if given == "here" and os.environ["LOCAL_RANK"] == "1" else -1])
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return int(found.item())


def main():
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    kinds = os.environ["KINDS"].split(",")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    victim = victim_of(rank)
    for _ in range(int(os.environ.get("STEPS", "3"))):
        train_step()
    if rank == victim and kinds[attempt] not in ("moves", "talks"):
        print(f"STUCK {kinds[attempt]} {time.time()}", flush=True)
    seconds = float(os.environ.get("SECONDS", "3600"))
    by = time.monotonic() + seconds
    while True:
        if rank == victim:
            KINDS[kinds[attempt]]()
        go_on = torch.tensor([1.0 if time.monotonic() < by else 0.0])
        dist.broadcast(go_on, victim)
        if not go_on.item():
            break
        train_step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    os._exit(0)  # gloo's threads may abort an interpreter that goes away under them
