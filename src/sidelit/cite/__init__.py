"""Citing: who wrote a project, what of it is cited, and the forms in which a citation is written."""
