"""The base of all other parts: collectives, layouts, streams, and comparisons between ranks."""
