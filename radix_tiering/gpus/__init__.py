"""What the NVIDIA driver says of GPUs: memory, load, how they reach each other, and what has gone over their links."""
