"""Where the tests keep files: in memory, where there is room."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_SHARED_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 2 * 1024**3


def memory_folder() -> Path | None:
    """A folder whose files are in memory, if there is room: databases make many files and wait for disks to take them.

    The tests end processes, never the power: what a disk would have kept then is nothing that they look at.
    """
    try:
        roomy = shutil.disk_usage(_SHARED_MEMORY).free >= _ROOM_BYTES
    except OSError:
        return None
    return _SHARED_MEMORY if roomy and os.access(_SHARED_MEMORY, os.W_OK) else None
