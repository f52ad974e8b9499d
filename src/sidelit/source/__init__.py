"""From the bytes of a Python file to its sections."""
