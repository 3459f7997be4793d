"""What developers and researchers run, in the source tree only: simulation and benches."""
