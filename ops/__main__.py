"""`python -m swift_tiers.ops` is `swift-tiers`."""

from swift_tiers.ops.cli import main

if __name__ == "__main__":
    main()
