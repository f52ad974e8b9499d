"""Docstrings of every dialect: Markdown, reST, Google's and NumPy's sections."""
