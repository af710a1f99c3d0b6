"""Guards that end child processes when their parent has ended, for whatever reason."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

_PDEATHSIG = 1
# `cat` ends when the other end of its pipe is closed, by hand or by the kernel. The server removes its pid file
# last. The process id still exists until the init process collects the exit status, which takes seconds in some
# containers.
_STOP_POSTGRES = """
cat > /dev/null
pid=$(head -n 1 "$1/data/postmaster.pid" 2> /dev/null) && kill -QUIT "$pid"
tries=0
while [ -n "$pid" ] && [ -e "$1/data/postmaster.pid" ] && kill -0 "$pid" 2> /dev/null && [ "$tries" -lt 200 ]; do
    sleep 0.05
    tries=$((tries + 1))
done
rm -rf "$1"
"""


def end_with_parent() -> None:
    """Have the kernel kill this process when the process that requested it ends, even if this process is paused.

    This works on Linux only.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    # Close this process's copy of the pipe, because the parent, a fork server, lives while any process holds a copy.
    server: Any = forkserver._forkserver  # noqa: SLF001
    if (alive := getattr(server, "_forkserver_alive_fd", None)) is not None:
        os.close(alive)
        server._forkserver_alive_fd = None  # noqa: SLF001


@contextmanager
def guarded_postgres(folder: Path) -> Iterator[None]:
    """Stop the PostgreSQL whose data is in a folder and remove the folder at the end of the block, or of this process.

    The server daemonises, so it has no parent that could end it. The guard has its own session, out of reach of Ctrl-C.
    """
    guard = subprocess.Popen(
        ["sh", "-c", _STOP_POSTGRES, "guard", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        guard.communicate()
