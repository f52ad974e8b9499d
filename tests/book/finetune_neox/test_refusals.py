"""What cannot be fine-tuned is refused in one sentence, on every rank, before the ranks meet."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ranks
from shardbook.command import Mistake

pytestmark = pytest.mark.full
Change = Callable[[Path], None]
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


def preload() -> None:
    """Import what every rank needs."""
    from shardbook.finetune_neox import finetune  # noqa: F401
    from shardbook.finetune_neox.pretrained import library

    hf = library()
    hf.AutoModelForCausalLM.from_config(hf.LlamaConfig(**SIZES, vocab_size=256))


def make(folder: Path, *, tied: bool = False) -> None:
    """A small Llama, which has no biases."""
    from shardbook.finetune_neox.pretrained import library

    hf = library()
    torch.manual_seed(5)
    config = hf.LlamaConfig(
        **SIZES, vocab_size=256, max_position_embeddings=32, num_key_value_heads=2, tie_word_embeddings=tied
    )
    hf.AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def weights(change: Callable[[dict[str, Any]], Any]) -> Change:
    """Change the tensors of a folder."""

    def act(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        held = load_file(folder / "model.safetensors")
        change(held)
        save_file(held, folder / "model.safetensors")

    return act


def describe(**values: Any) -> Change:
    """Change `config.json`."""

    def act(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | values))

    return act


def config(text: str) -> Change:
    """Replace `config.json`."""
    return lambda folder: (folder / "config.json").write_text(text) and None


def remove(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def lead_out(folder: Path) -> None:
    """A file of the folder is a link to a secret."""
    secret = folder.with_name("secret")
    secret.write_text("secret", "utf-8")
    (folder / "LICENSE").symlink_to(secret)


NORM = "model.norm.weight"
# What is done to the folder, the options, and what the sentence says.
CASES: dict[str, tuple[Change, list[str], str]] = {
    "no config": (remove("config.json"), [], "there is no config.json"),
    "no weights": (pickled, [], "holds neither model.safetensors nor"),
    "half a file": (
        lambda folder: (folder / "model.safetensors").write_bytes(b"\x08" + bytes(15)),
        [],
        "is no safetensors file",
    ),
    "unknown kind": (describe(model_type="nothing"), [], "config.json describes no model"),
    **{
        f"hidden size {size!r}": (describe(hidden_size=size), [], "config.json|by config.json$")
        for size in (0, -4, None, "16", 1.5, 2**62, [])
    },
    **{
        f"{name} {value!r}": (describe(**{name: value}), [], "config.json describes no model .* can build: .")
        for name, value in (
            *[("hidden_act", "x"), ("dtype", "x"), ("model_type", []), ("rope_parameters", 3)],
            *[("num_attention_heads", 0), ("num_key_value_heads", 0), ("vocab_size", -4)],
        )
    },
    "a million layers": (
        describe(num_hidden_layers=10**6),
        [],
        r"config\.json has 1000000 layers, and the files hold \d+ tensors; take both",
    ),
    "no configuration": (config("null"), [], "config.json describes no model"),
    "a nest": (
        config('{"more": ' + "[" * 10**5),
        [],
        "config.json describes no model .* RecursionError: maximum",
    ),
    "no language model": (describe(model_type="vit"), [], "is no causal language model"),
    "quantized": (describe(quantization_config={"quant_method": "gptq", "bits": 4}), [], "are quantized"),
    "a tensor too few": (weights(lambda held: held.pop(NORM)), [], f"the files hold no {NORM}"),
    "another shape": (
        weights(lambda held: held.update({NORM: torch.ones(3)})),
        [],
        r"has shape \(3,\) in the files, and \(16,\) by config.json",
    ),
    "another dtype": (
        weights(lambda held: held.update({NORM: torch.ones(16, dtype=torch.float8_e4m3fn)})),
        [],
        "is float8_e4m3fn; only float32, bfloat16 and float16 are trained",
    ),
    "no biases": (lambda folder: None, [], "--train biases chooses no parameter of this LlamaForCausalLM"),
    "no match": (
        lambda folder: None,
        ["--train", "nothing"],
        "its names look like model.embed_tokens.weight",
    ),
    "no pattern": (lambda folder: None, ["--train", "("], "is no regular expression"),
    "no such unit": (lambda folder: None, ["--units", "Block"], "its modules are .*LlamaDecoderLayer"),
    "no layer for LoRA": (
        lambda folder: None,
        ["--train", "lora", "--lora-targets", "nothing"],
        "--train lora does not fit this LlamaForCausalLM",
    ),
    "a long window": (lambda folder: None, ["--context", "64"], "the model sees at most 32 tokens"),
    "few tokens": (
        lambda folder: (describe(vocab_size=100)(folder), weights(fewer)(folder)),
        ["--train", "norm"],
        "a vocabulary of 100, but the text has 256 tokens",
    ),
    "a mesh": (lambda folder: None, ["--mesh", "2x1"], "--mesh is for shardbook.train"),
    "a shape of its own": (lambda folder: None, ["--layers", "3"], "--layers is for a random model"),
    "reentrant": (
        lambda folder: None,
        ["--train", "norm", "--checkpoint", "reentrant"],
        "use --checkpoint non-reentrant",
    ),
    "the same folder": (lambda folder: None, ["--out", "MODEL"], "is the folder of --model"),
    "a link": (lead_out, ["--train", "norm", "--out", "NEW"], "LICENSE is a link out of this folder"),
    "a full folder": (lambda folder: None, ["--out", "FULL"], "is not empty; name another folder, or add"),
}


def fewer(held: dict[str, Any]) -> None:
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        held[name] = held[name][:100].contiguous()


def refused(place: Path) -> dict[str, str]:
    """The sentence of each case."""
    from shardbook.finetune_neox.finetune import begin
    from shardbook.finetune_neox.finetune_options import parse

    make(place / "whole")
    said = {}
    for name, (change, options, _) in CASES.items():
        folder = shutil.copytree(place / "whole", place / name.replace(" ", "-"))
        change(folder)
        words = [
            {"MODEL": str(folder), "FULL": str(place / "whole"), "NEW": str(place / "new")}.get(word, word)
            for word in options
        ]
        context = [] if "--context" in words else ["--context", "16"]
        with pytest.raises(Mistake) as mistake:
            begin(parse(["--model", str(folder), *context, *words]))
        said[name] = str(mistake.value)
    return said


@pytest.mark.nightly
def test_what_cannot_be_trained_is_told_in_one_sentence(tmp_path: Path) -> None:
    (said,) = ranks.run(1, refused, tmp_path)
    for name, (_, _, sentence) in CASES.items():
        assert re.search(sentence, said[name]), (name, said[name])
        assert "\n" not in said[name], name
    assert len(said) == len(CASES)


# --- what the ranks find out together ---


def two_values(place: Path) -> str:
    """A tied weight that the files hold twice."""
    import torch.distributed as dist

    from shardbook.finetune_neox.finetune import begin, finetune
    from shardbook.finetune_neox.finetune_options import parse
    from shardbook.train.text import prepare

    if dist.get_rank() == 0:
        make(place / "tied", tied=True)

        # Only the last row differs, which the last rank has.
        def twice(held: dict[str, Any]) -> None:
            held["lm_head.weight"] = held["model.embed_tokens.weight"].clone()
            held["lm_head.weight"][-1] += 1

        weights(twice)(place / "tied")
    dist.barrier()
    words = ["--context", "16", "--batch", "2", "--device", "cpu", "--train", "norm"]
    options = parse(["--model", str(place / "tied"), *words])
    beginning, adapters = begin(options)
    prepare(options)
    with pytest.raises(Mistake) as mistake:
        finetune(options, beginning, adapters, torch.device("cpu"))
    short = place / f"short-{dist.get_rank()}.txt"
    short.write_text("Too short.")
    options = parse(["--text", str(short), *words])
    beginning, adapters = begin(options)
    prepare(options)
    with pytest.raises(
        Mistake, match=r"but a text of \d+ tokens has 0 windows of 16; lower batch or context"
    ):
        finetune(options, beginning, adapters, torch.device("cpu"))
    return str(mistake.value)


def test_every_rank_refuses_a_tied_weight_with_two_values_and_a_short_text(tmp_path: Path) -> None:
    for said in ranks.run(2, two_values, tmp_path):
        assert "have different values in the files; set tie_word_embeddings to false" in said


# --- libraries that are not installed ---


def without_a_library() -> list[str]:
    from shardbook.finetune_neox.finetune import begin
    from shardbook.finetune_neox.finetune_options import parse

    said = []
    for name, words in (("peft", ["--train", "lora"]), ("transformers", [])):
        kept = sys.modules.get(name)
        sys.modules[name] = None  # type: ignore[assignment]
        with pytest.raises(Mistake) as mistake:
            begin(parse(words))
        said.append(str(mistake.value))
        if kept is not None:
            sys.modules[name] = kept
    return said


def test_a_library_that_is_not_installed_is_named() -> None:
    ((peft, transformers),) = ranks.run(1, without_a_library)
    assert peft == "--train lora needs the library peft: pip install peft, or train biases or a pattern"
    assert "needs the library transformers: pip install 'shardbook[finetune]'" in transformers
