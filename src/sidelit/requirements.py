"""# What a notebook needs

> One line for pip, and the module that tells whether it is there already.
"""

from __future__ import annotations

from packaging.requirements import InvalidRequirement, Requirement

_REPOSITORY = "{repository}"


def module(requirement: str) -> str:
    """The name under which a requirement is imported, taken to be that of its distribution.

    It is empty for what pip would not understand.
    """
    try:
        return Requirement(requirement).name.replace("-", "_").replace(".", "_")
    except InvalidRequirement:
        return ""


def filled(requirement: str, repository: str | None) -> str:
    """The same, with the repository in its blank `{repository}`; empty where none is known."""
    if repository is None and _REPOSITORY in requirement:
        return ""
    return requirement.replace(_REPOSITORY, repository or "")
