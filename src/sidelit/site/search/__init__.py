"""Search: an index that the press makes, and a script that reads it."""
