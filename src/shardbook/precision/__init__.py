"""Floating-point formats, autocast, and the scaling of losses."""
