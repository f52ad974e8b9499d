"""Notebooks made from labs."""
