"""What views are made of. Each draws only what is visible."""
