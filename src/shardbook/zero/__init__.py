"""The stages of ZeRO: a unit, the hooks that drive it, and the order of the units."""
