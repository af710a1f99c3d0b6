"""With the variable `TESTS_DATABASE_KEY`, all SQLite files of the tests are encrypted; see `store/test_sqlcipher.py`.

Importing this module changes the default options, also in child processes.
"""

from __future__ import annotations

import os

from threadkeep import MemoryOptions, StoreOptions

if _KEY := os.environ.get("TESTS_DATABASE_KEY"):
    *_OTHER_DEFAULTS, _ = StoreOptions.__init__.__defaults__ or ()
    StoreOptions.__init__.__defaults__ = (*_OTHER_DEFAULTS, _KEY)
    # Change the default store options of `MemoryOptions` too, which were created before.
    object.__setattr__(MemoryOptions().store, "key", _KEY)
