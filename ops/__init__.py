"""What is run: the command line `swift-tiers` (`cli`), its commands, and the lab of the source tree."""
