"""A script that ends its process, and is no module."""

import sys

sys.exit(3)
