"""The commands of `swift-tiers`, one a module or a package: each has SUMMARY, `add_arguments` and `run`."""
