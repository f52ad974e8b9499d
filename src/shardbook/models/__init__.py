"""The models that the book trains, and their text."""
