"""`python -m threadkeep` is the command line."""

from __future__ import annotations

import sys

from threadkeep.cli import main

sys.exit(main())
