"""The folder for files of tests: in memory, if there is enough space."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_SHARED_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 2 * 1024**3


def memory_folder() -> Path | None:
    """Return a folder in memory if it has enough space, because databases write many files and wait for the disk.

    Files in memory are enough, because tests kill processes but simulate no power failure.
    """
    try:
        roomy = shutil.disk_usage(_SHARED_MEMORY).free >= _ROOM_BYTES
    except OSError:
        return None
    return _SHARED_MEMORY if roomy and os.access(_SHARED_MEMORY, os.W_OK) else None
