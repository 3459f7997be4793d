"""What goes over the links between tiers, and over the wires of the GPUs."""

from .view import Links

__all__ = ["Links"]
