"""Restore plans: which part of a prefix is loaded from where, and which is recomputed meanwhile (CacheFlow). Pure."""
