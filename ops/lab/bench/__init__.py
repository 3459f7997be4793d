"""Benches of developers: `./swift bench NAME`."""
