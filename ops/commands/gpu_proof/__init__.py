"""What a GPU proves and measures: `swift-tiers gpu-proof`.

Where only torch, triton and numpy are installed: `python -m swift_tiers.ops.commands.gpu_proof`. A part that needs more
imports it when its turn comes, and is left out without it.
"""
