"""The command line, as `python -m threadkeep`."""

from __future__ import annotations

import sys

from threadkeep.cli import main

sys.exit(main())
