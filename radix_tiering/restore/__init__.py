"""Restore plans: which part of a prefix is loaded from where, and which is recomputed meanwhile (CacheFlow). Pure.

A `Planner` makes a `Decision` out of costs; a `Flight` is a plan under way; a `Batch` shares the sources among flights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..base.door import lazily

if TYPE_CHECKING:
    from .batch import Batch, Forward, Pick
    from .cost import ComputeCost, CostModel, SourceCost
    from .fitting import ComputeSample, LoadSample, fit_compute, fit_source
    from .flight import Flight, Step, Unit
    from .layers import LayerCourse
    from .live import LiveCosts
    from .plan import Prefix, RestorePlan, Run, Strategy, plan_layers, plan_restore, two_pointer_bound
    from .planner import HERE, Costs, Decision, Planner
    from .profiles import ModelIdentity, Profile, ProfileError, find_profile, load_profile, save_profile
    from .storyteller import Storyteller
else:
    __getattr__ = lazily(__name__)

__all__ = [
    "HERE",
    "Batch",
    "ComputeCost",
    "ComputeSample",
    "CostModel",
    "Costs",
    "Decision",
    "Flight",
    "Forward",
    "LayerCourse",
    "LiveCosts",
    "LoadSample",
    "ModelIdentity",
    "Pick",
    "Planner",
    "Prefix",
    "Profile",
    "ProfileError",
    "RestorePlan",
    "Run",
    "SourceCost",
    "Step",
    "Storyteller",
    "Strategy",
    "Unit",
    "find_profile",
    "fit_compute",
    "fit_source",
    "load_profile",
    "plan_layers",
    "plan_restore",
    "save_profile",
    "two_pointer_bound",
]
