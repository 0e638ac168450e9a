"""What torch finds under `torchrun.handlers`: loads muster.torch only when it is used.

Apart from it, since torch reads its plug-ins while muster.torch is being imported.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any


def create_handler(params: Any) -> Any:
    from .torch import MusterRendezvousHandler

    return MusterRendezvousHandler(params)


def torchrun_handler() -> Callable[[Any], Any]:
    """The entry point: torch calls it and registers what it returns."""
    return create_handler
