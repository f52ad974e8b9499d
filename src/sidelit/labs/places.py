"""# Where notebooks lie

> Beside their sources, in a folder for each language; those for teachers in a folder of their own.

    notebooks/01_memory.py
    notebooks/en/01_memory.ipynb
    notebooks/ja/01_memory.ipynb
    notebooks/teacher/en/01_memory.ipynb
"""

from __future__ import annotations

from sidelit.config import Config, Lab

TEACHERS = "teacher"


def student(config: Config, item: Lab, lang: str) -> str:
    """The notebook in which the solutions are blanks, from the project folder."""
    return f"{config.labs.folder}/{lang}/{item.stem}.ipynb"


def teacher(config: Config, item: Lab, lang: str) -> str:
    """The notebook with the solutions, from the project folder."""
    return f"{config.labs.folder}/{TEACHERS}/{lang}/{item.stem}.ipynb"
