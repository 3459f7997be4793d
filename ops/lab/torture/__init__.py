"""`./swift torture`: the real engine in virtual time, under seeds, while everything around it goes wrong."""
