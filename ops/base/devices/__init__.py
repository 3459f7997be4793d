"""Devices that are not here: GPUs, links and SSDs as models in virtual time, and requests that are restored on them.

The console's demo and the simulation (`ops/lab/simulate`) stand on them. What decides is the product's own code.
"""
