"""`python -m swift_tiers.ops.commands.gpu_proof [--out DIR]`"""

import argparse
import sys

from .options import ProofError, add_arguments
from .proof import prove


def main() -> int:
    parser = argparse.ArgumentParser(prog="gpu-proof", description=__doc__)
    add_arguments(parser)
    try:
        return prove(parser.parse_args())
    except ProofError as error:
        print(f"gpu-proof: error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
