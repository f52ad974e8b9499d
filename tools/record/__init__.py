"""Recordings: the numbers behind the figures of the book, each from a real run of the library."""
