"""Checkpoints that wait elsewhere, and models that are larger than their device."""
