"""What views have in common: what a view is, and the parts that several of them show."""

from .view import Answered, Offer, Scene, View

__all__ = ["Answered", "Offer", "Scene", "View"]
