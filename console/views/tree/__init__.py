"""The shape of SGLang's radix tree, and its largest subtrees."""

from .view import TreeShape

__all__ = ["TreeShape"]
