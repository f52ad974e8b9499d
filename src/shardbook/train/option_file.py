r"""# Options in a file

> A run is described by a file, and the command line changes what differs today.

```toml
[model]
layers = 12
width = 768

[training]
steps = 5000
schedule = "cosine"
warmup = 200
```

`--config run.toml` reads such a file. Each key is an option without its dashes, and a
table is only a heading: its name is up to you. A file whose name ends in `.yaml` or
`.yml` says the same in YAML, for which pyyaml has to be installed. A path in the file
begins where the program is started, as it does on the command line. The command line
wins over the file.

The values of a file go through the same checks as those of the command line: each is
written as an argument and parsed. The message of a mistake names the file and the line.
"""

# sidelit: hide
from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shardbook.command import Mistake

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["arguments_in"]
# sidelit: show


def arguments_in(path: Path, parser: argparse.ArgumentParser) -> list[str]:
    """The options in a file, as they would stand on the command line.

    :param parser: knows the options, and checks each of them
    :raises Mistake: naming the file and the line, if the file is not there or cannot be
        read, or an option in it is unknown or has a value that makes no sense
    """
    text = read(path)
    result: list[str] = []
    for key, value in entries(parsed(path, text)):
        place = f"{path}:{line_of(key, text)}"
        arguments = as_arguments(parser, key, value, place)
        try:
            parser.parse_args(arguments)
        except Mistake as mistake:
            raise Mistake(f"{place}: {mistake}") from mistake
        result += arguments
    return result


def entries(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """All keys with their values, those inside of tables too."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from entries(value)
        else:
            yield str(key), value


def as_arguments(
    parser: argparse.ArgumentParser, key: str, value: Any, place: str
) -> list[str]:
    """One entry as the words of a command line."""
    flag = f"--{key.replace('_', '-')}"
    actions = {
        name: action for action in parser._actions for name in action.option_strings
    }
    if flag not in actions or key in ("help", "config"):
        raise Mistake(f"{place}: {key} is no option of a file; see --help")
    # A switch is there or not. One that can be turned off has a second name.
    if actions[flag].nargs == 0:
        off = [name for name in (f"--no-{flag[2:]}",) if name in actions]
        if not isinstance(value, bool):
            raise Mistake(f"{place}: {key} is {value!r}, but it must be true or false")
        return [flag] if value else off
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise Mistake(f"{place}: {key} is {value!r}, but it must be a word or a number")
    # In one word, because a value may begin with a dash.
    return [f"{flag}={value}"]


def parsed(path: Path, text: str) -> dict[str, Any]:
    """The file as a dictionary, by the kind that its name says."""
    if path.suffix == ".toml":
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            line = re.search(r"at line (\d+)", str(error))
            place = f"{path}:{line[1]}" if line else str(path)
            raise Mistake(f"{place}: this is no TOML: {error}") from error
    if path.suffix in (".yaml", ".yml"):
        return parsed_yaml(path, text)
    raise Mistake(f"--config {path}: name a file that ends in .toml, .yaml or .yml")


# sidelit: depth Files that cannot be read, and the line of a mistake.


def parsed_yaml(path: Path, text: str) -> dict[str, Any]:
    """A YAML file as a dictionary.

    :raises Mistake: if pyyaml is missing, or the text is no YAML, or it holds no keys
    """
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise Mistake(
            f"--config {path} needs the library pyyaml: pip install pyyaml, "
            "or write the options as TOML"
        ) from error
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "it cannot be read"
        raise Mistake(f"{path}{line}: this is no YAML: {problem}") from error
    if not isinstance(values, dict | None):
        raise Mistake(f"{path}:1: write options with their values, such as steps: 200")
    return values or {}


def read(path: Path) -> str:
    """The text of the file.

    :raises Mistake: if it cannot be read
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise Mistake(f"--config {path}: {reason}") from error


def line_of(key: str, text: str) -> int:
    """The number of the line where a key has its value."""
    pattern = rf"""^[\s{{,]*["']?{re.escape(key)}["']?\s*[:=]"""
    found = re.search(pattern, text, re.MULTILINE)
    # A match may begin with the blank lines above.
    return text.count("\n", 0, found.end()) + 1 if found else 1
