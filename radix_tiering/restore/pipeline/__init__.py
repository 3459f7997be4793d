"""Restores of a model that is split into pipeline stages: the plan of each stage (CacheFlow, section 3.2)."""
