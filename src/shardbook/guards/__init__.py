"""Checks that refuse to train something else than the plain model."""
