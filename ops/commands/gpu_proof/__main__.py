"""`python -m swift_tiers.ops.commands.gpu_proof [--out DIR]`"""

import argparse
import sys

from swift_tiers.ops.commands.gpu_proof.options import ProofError, add_arguments
from swift_tiers.ops.commands.gpu_proof.proof import prove


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
