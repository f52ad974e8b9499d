"""The kit for a machine with GPUs: is the library right there, and is it fast? `make gpu` runs it."""
