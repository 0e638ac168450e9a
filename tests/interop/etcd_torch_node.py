"""torch's own rendezvous handlers by hand: the other half of etcd_nodes.TorchHost."""
from __future__ import annotations

import json
import queue
import sys
import threading

from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

lock = threading.Lock()


def say(number: int, *words: object) -> None:
    with lock:
        print(json.dumps({"id": number, "words": [str(w) for w in words]}), flush=True)


def serve(number: int, todo: "queue.Queue[list]", args: list) -> None:
    backend, endpoint, run_id, low, high, conf, addr = args
    options = dict(pair.split("=", 1) for pair in conf.split(",") if pair)
    handler = None
    info = None
    while True:
        command, *words = todo.get()
        try:
            if handler is None:
                handler = get_rendezvous_handler(RendezvousParameters(
                    backend, endpoint, run_id, low, high, addr, **options))
            if command == "next":
                info = handler.next_rendezvous()
                round_ = (handler._state_holder.state.round
                          if hasattr(handler, "_state_holder") else -1)
                say(number, "joined", round_, info.rank, info.world_size,
                    info.bootstrap_store_info.master_addr,
                    info.bootstrap_store_info.master_port)
            elif command == "waiting":
                say(number, "waiting", handler.num_nodes_waiting())
            elif command == "closed":
                say(number, "closed", int(handler.is_closed()))
            elif command == "close":
                handler.set_closed()
                say(number, "done")
            elif command == "shutdown":
                say(number, "done" if handler.shutdown() else "failed")
            elif command == "set":
                info.store.set(words[0], words[1])
                say(number, "done")
            elif command == "get":
                say(number, "value", info.store.get(words[0]).decode())
            elif command == "die":  # as if killed: no beat, no goodbye
                if hasattr(handler, "_stop_heartbeats"):
                    handler._stop_heartbeats()
                else:
                    handler._rdzv_impl._lease_this_rank_stop.set()
                say(number, "done")
                return
        except Exception as e:  # noqa: BLE001 - all of them are answers
            say(number, "failed", type(e).__name__, str(e))


def main() -> None:
    todo: dict[int, queue.Queue] = {}
    for line in sys.stdin:
        message = json.loads(line)
        number = message["id"]
        if "open" in message:
            todo[number] = queue.Queue()
            threading.Thread(target=serve, args=(number, todo[number], message["open"]),
                             daemon=True).start()
        else:
            todo[number].put(message["do"])


main()
