"""`python -m swift_tiers.ops` is `swift-tiers`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
