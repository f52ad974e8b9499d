"""Options from a file: the same as on the command line, and each mistake with its line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from shardbook.command import Mistake
from shardbook.train.options import parse

TOML = """
steps = 30

[model]
layers = 2
width = 32
heads = 2

[anything]
lr = 3e-3
schedule = "cosine"
warmup = 5
offload = true
clip = 1
evaluate-every = 10
prompt = "-- so"
compile = "eager"
"""
YAML = """
steps: 30
model: {layers: 2, width: 32, heads: 2}
anything:
  lr: 3e-3
  schedule: cosine
  warmup: 5
  offload: yes
  clip: 1
  evaluate_every: 10
  prompt: "-- so"
  compile: eager
"""
WORDS = (
    "--steps 30 --layers 2 --width 32 --heads 2 --lr 3e-3 --schedule cosine --warmup 5 --offload --clip 1 "
    "--evaluate-every 10 --compile eager"
)


@pytest.mark.parametrize(("name", "text"), [("run.toml", TOML), ("run.yaml", YAML), ("run.yml", YAML)])
def test_a_file_says_what_the_command_line_says(name: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(text, "utf-8")
    from_file = vars(parse(["--config", str(file)]))
    from_words = vars(parse([*WORDS.split(), "--prompt=-- so"]))
    assert from_file.pop("file") == file
    assert from_words.pop("file") is None
    assert from_file == from_words


def test_the_command_line_wins_and_turns_switches_off(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(TOML, "utf-8")
    options = parse(["--layers", "3", "--no-offload", "--config", str(file), "--compile", "none"])
    assert (options.layers, options.offload, options.compile) == (3, False, "none")
    assert (options.width, options.warmup) == (32, 5)


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    for name in ("run.toml", "run.yaml"):
        (tmp_path / name).touch()
        assert {**vars(parse(["--config", str(tmp_path / name)])), "file": None} == vars(parse([]))


@pytest.mark.cases(now=21, ci=21)
@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("a.toml", "steps = 30\n\nlayer = 2\n", ":3: layer is no option of a file; see --help"),
        ("a.yaml", "steps: 30\n\nlayer: 2\n", ":3: layer is no option of a file; see --help"),
        ("a.toml", "config = 'b.toml'\n", ":1: config is no option of a file"),
        ("a.toml", "[t]\nlr = 'fast'\n", ":2: --lr is fast, but it must be a number from"),
        ("a.toml", "stage = 4\n", ":1: argument --stage: invalid choice: 4"),
        ("a.toml", "steps = 3.5\n", ":1: --steps is 3.5, but it must be a whole number"),
        ("a.toml", "\noffload = 1\n", ":2: offload is 1, but it must be true or false"),
        ("a.toml", "\nlayers = true\n", ":2: layers is True, but it must be a word or a number"),
        ("a.yaml", "lr: [1]\n", ":1: lr is [1], but it must be a word or a number"),
        ("a.yaml", "lr:\n", ":1: lr is None, but it must be a word or a number"),
        ("a.toml", "a = 1\nb = \n", ":2: this is no TOML: Invalid value"),
        ("a.yaml", "a: 1\nb: [\n", ":3: this is no YAML: expected the node content"),
        ("a.yaml", "a: 2001-13-01\n", ": this is no YAML: "),
        ("a.yaml", "a: " + "[" * 2000 + "]" * 2000, ": this is no YAML: "),
        ("a.yaml", "[" * 9000, ": this is no YAML: "),
        ("a.toml", "a = " + "[" * 9000, ": this is no TOML: "),
        ("a.toml", "a = " + "9" * 5000, ": this is no TOML: "),
        ("a.yaml", "a: &a\n  b: *a\n  layer: 2\n", ":3: layer is no option of a file"),
        ("a.toml", "prompt = 'a'\n" + "\n" * 2**16, ": a file of options has at most 64 kB"),
        (
            "a.toml",
            'data = "a\\u0000"\n',
            ":1: --data/--text is 'a\\x00', which is no path: embedded null",
        ),
        ("a.yaml", "- steps\n", ":1: write options with their values, such as steps: 200"),
        ("a.ini", "steps = 1\n", ": name a file that ends in .toml, .yaml or .yml"),
        ("a.toml", None, ": No such file or directory"),
    ],
)
def test_a_mistake_is_told_with_its_line(name: str, text: str | None, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / name
    if text is not None:
        file.write_text(text, "utf-8")
    with pytest.raises(Mistake) as told:
        parse(["--config", str(file)])
    assert f"{file}{sentence}" in str(told.value)
    assert "\n" not in str(told.value)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(Mistake, match="it is no UTF-8 text"):
        parse(["--config", str(file)])


def test_yaml_without_pyyaml_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("steps: 3\n", "utf-8")
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(Mistake, match="needs the library pyyaml: pip install pyyaml"):
        parse(["--config", str(file)])
