"""The press."""
