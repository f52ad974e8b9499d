"""Symbols: what a letter of a formula stands for, and every place where it stands."""
