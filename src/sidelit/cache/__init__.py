"""The build graph, the store of what earlier builds have made, and what is kept out of memory."""
