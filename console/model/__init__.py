"""What the console knows: pure, without a terminal and without Redis."""
