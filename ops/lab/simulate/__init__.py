"""`./swift simulate`: the papers' evaluations, and beyond them, on devices that are not here."""
