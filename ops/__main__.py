"""`python -m swift_tiers.ops` is `swift-tiers`."""

import sys

from swift_tiers.ops.cli import main

if __name__ == "__main__":
    sys.exit(main())
