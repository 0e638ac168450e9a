"""What torch finds under `torchrun.handlers`: loads muster.torch only when it is used.

Apart from it, since torch reads its plug-ins while muster.torch is being imported. Torch calls
an entry point and registers what it returns under the entry point's name: `muster` is our c10d,
`muster-etcd-v3` our etcd-v3, and so on.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

Creator = Callable[[Any], Any]


def _creator(backend: str) -> Creator:
    def create_handler(params: Any) -> Any:
        from .torch import MusterRendezvousHandler

        return MusterRendezvousHandler(params, backend)

    return create_handler


def c10d() -> Creator:
    """`--rdzv-backend=muster`."""
    return _creator("c10d")


def static() -> Creator:
    """`--rdzv-backend=muster-static`."""
    return _creator("static")


def etcd() -> Creator:
    """`--rdzv-backend=muster-etcd`: torch's first etcd rendezvous."""
    return _creator("etcd")


def etcd_v2() -> Creator:
    """`--rdzv-backend=muster-etcd-v2`."""
    return _creator("etcd-v2")


def etcd_v3() -> Creator:
    """`--rdzv-backend=muster-etcd-v3`."""
    return _creator("etcd-v3")
