"""Drawings made of recorded data, once for each language."""
