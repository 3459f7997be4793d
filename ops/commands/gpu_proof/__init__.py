"""What a GPU proves and measures: `swift-tiers gpu-proof`, or `python -m swift_tiers.ops.commands.gpu_proof` where only torch,
triton and numpy are installed. A part that needs more imports it when its turn comes, and is left out without it."""
