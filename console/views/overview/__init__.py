"""Which server is unwell, and why."""

from .view import Overview

__all__ = ["Overview"]
