"""ZeRO."""
