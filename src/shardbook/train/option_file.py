r"""# Options in a configuration file

> `--config` reads the options of a run from a TOML or YAML file, and the command line
> overrides the file.

```toml
[model]
layers = 12
width = 768

[training]
steps = 5000
schedule = "cosine"
warmup = 200
```

`--config run.toml` reads this file. Each key is an option without its dashes. A table is
only a heading, so you can choose its name. A file whose name ends in `.yaml` or `.yml`
is read as YAML, for which pyyaml has to be installed. A relative path in the file
starts at the folder in which you start the program, as on the command line. The command
line overrides the file, for example `--config run.toml --steps 100`.

The program converts each entry into an argument and parses it, so the values of a file
are checked like those of the command line. If a value is wrong, the message names the
file and the line.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from reprlib import repr as repr_of
from typing import Any

from shardbook.command import Mistake

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["arguments_in"]


def arguments_in(path: Path, parser: argparse.ArgumentParser) -> list[str]:
    """Convert the options in a file into arguments of the command line.

    :param parser: the parser of the options, which also checks them
    :raises Mistake: naming the file and the line, if the file cannot be read, or an
        option in it is unknown or has a wrong value
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
    """All keys with their values, including those inside tables."""
    # YAML can name a table and repeat it, even inside of itself. Once is enough.
    waiting, seen = [*values.items()], {id(values)}
    while waiting:
        key, value = waiting.pop(0)
        if not isinstance(value, dict):
            yield str(key), value
        elif id(value) not in seen:
            seen.add(id(value))
            waiting[:0] = value.items()


def as_arguments(
    parser: argparse.ArgumentParser, key: str, value: Any, place: str
) -> list[str]:
    """Convert one entry into arguments of the command line."""
    flag = f"--{key.replace('_', '-')}"
    actions = {
        name: action for action in parser._actions for name in action.option_strings
    }
    if flag not in actions or key in ("help", "config"):
        raise Mistake(f"{place}: {key} is no option of a file; see --help")
    # A switch has no value: it is either given or left out. A switch that can be turned
    # off has a second name, such as `--no-offload`.
    if actions[flag].nargs == 0:
        off = [name for name in (f"--no-{flag[2:]}",) if name in actions]
        if not isinstance(value, bool):
            raise Mistake(
                f"{place}: {key} is {repr_of(value)}, but it must be true or false"
            )
        return [flag] if value else off
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise Mistake(
            f"{place}: {key} is {repr_of(value)}, but it must be a word or a number"
        )
    # The option and its value form one argument, because a value may begin with a dash.
    return [f"{flag}={value}"]


def parsed(path: Path, text: str) -> dict[str, Any]:
    """Parse a file into a dictionary. The end of its name chooses TOML or YAML."""
    if path.suffix == ".toml":
        try:
            return tomllib.loads(text)
        # A deep nesting and a very long number have errors of their own.
        except (ValueError, RecursionError) as error:
            line = re.search(r"at line (\d+)", str(error))
            place = f"{path}:{line[1]}" if line else str(path)
            raise Mistake(f"{place}: this is no TOML: {error}") from error
    return parsed_yaml(path, text)


# sidelit: depth Files that cannot be read, and the line of a mistake.


def parsed_yaml(path: Path, text: str) -> dict[str, Any]:
    """Parse YAML into a dictionary.

    :raises Mistake: if pyyaml is missing, or the text is not YAML, or it has no keys
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
    # The reader has errors of many kinds, such as for a date in a thirteenth month.
    except Exception as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "it cannot be read"
        raise Mistake(f"{path}{line}: this is no YAML: {problem}") from error
    if not isinstance(values, dict | None):
        raise Mistake(f"{path}:1: write options with their values, such as steps: 200")
    return values or {}


def read(path: Path) -> str:
    """Read the text of a file.

    :raises Mistake: if the file cannot be read
    """
    if path.suffix not in (".toml", ".yaml", ".yml"):
        raise Mistake(f"--config {path}: name a file that ends in .toml, .yaml or .yml")
    if path.exists() and not path.is_file():
        raise Mistake(f"--config {path}: this is no file")
    try:
        # Every option once takes a hundredth of that.
        if path.stat().st_size > 2**16:
            raise Mistake(f"--config {path}: a file of options has at most 64 kB")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise Mistake(f"--config {path}: {reason}") from error


def line_of(key: str, text: str) -> int:
    """Find the number of the line with a key and its value."""
    pattern = rf"""^[ \t{{,]*["']?{re.escape(key)}["']?\s*[:=]"""
    found = re.search(pattern, text, re.MULTILINE)
    return text.count("\n", 0, found.end()) + 1 if found else 1
