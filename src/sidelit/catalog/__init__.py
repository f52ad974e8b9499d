"""Translations: what is translated, where it is kept, and what is left of it after a change."""
