"""What every part of the library stands on: collectives, layouts, streams, and ranks that compare."""
