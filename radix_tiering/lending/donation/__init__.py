"""Elastic donation: how much of its KV memory a server lends, in what units, and when it takes it back (SwiftCache)."""
