"""The training program, and the ranks that it starts on."""
