"""How long until this node, or the job, is to go."""
from __future__ import annotations

import mmap
import os
import time

_map: mmap.mmap | None = None
_looked = False


def _file() -> mmap.mmap | None:
    """The file of MUSTER_NOTICE_FILE, which the agent writes in place; mapped once."""
    global _looked, _map
    if not _looked:
        _looked = True
        path = os.environ.get("MUSTER_NOTICE_FILE")
        try:
            if path:
                with open(path, "rb") as f:
                    _map = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
        except (OSError, ValueError):
            pass
    return _map


def deadline() -> float | None:
    """Seconds until the workers of this node are ended, at least 0; None if nobody has said so.

    Call it after each step: ``if muster.deadline() is not None: save(); sys.exit()``. It
    reads memory that the agent writes to, without a system call while there is no notice.
    Needs ``muster run --notice`` or ``--on-notice``.
    """
    text = _map if _looked else _file()
    if text is None:
        return None
    at = float(text[:])
    return max(at - time.time(), 0.0) if at else None
