"""`swift-tiers console --demo`: simulated servers to look at, without any server or Redis.

What decides is the product's code on a virtual clock: page tables, eviction, write-behind, the planner and its two
pointers, leases, sizing. Devices, GPUs, requests and what goes wrong are made up (`ops/base/devices` has the models).
Nothing is measured here, and no figure of it is one of a real machine.
"""

from .feed import DemoFeed

__all__ = ["DemoFeed"]
