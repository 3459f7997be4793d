"""Where the console's looks come from: the bus, a recording, or whoever else makes looks."""
