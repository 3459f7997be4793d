"""The bus: what the tiers hold and do, on Redis."""
