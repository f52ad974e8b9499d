"""A tokenizer that is made where a test runs."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers


def tokenizer_file(folder: Path, words: int) -> Path:
    """The file of a tokenizer whose words are `w1`, `w2` and so on; `words` is how many numbers it has."""
    vocabulary = {"[UNK]": 0, **{f"w{number}": number for number in range(1, words)}}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"
