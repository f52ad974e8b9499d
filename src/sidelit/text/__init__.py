"""Commentary, formulas and code, each turned into HTML."""
