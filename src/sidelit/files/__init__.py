"""Files: what may be read, what is written whole or not at all, and the templates of the press."""
