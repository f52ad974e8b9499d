"""Models of the transformers library, with random weights, are fine-tuned from a folder into a folder.

The ranks call what the command calls, once the process group is there; one test starts the command itself.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import ranks
from shardbook.command import Mistake
from tiers import rows
from warm import TORCHRUN, start

CPU = torch.device("cpu")
TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom. " * 12
SMALL = ["--context", "16", "--batch", "2", "--evaluate-batches", "1", "--sample", "0", "--device", "cpu"]
RUN = [*SMALL, "--steps", "6", "--lr", "0.01", "--clip", "1", "--schedule", "cosine"]
SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}


def preload() -> None:
    """Import what every rank needs."""
    from shardbook.finetune_neox import finetune  # noqa: F401
    from shardbook.finetune_neox.pretrained import library

    hf = library()
    hf.AutoModelForCausalLM.from_config(hf.GPTNeoXConfig(**SIZES, vocab_size=256))


def make_folder(folder: Path, kind: str = "neox", dtype: torch.dtype = torch.float32) -> None:
    """A folder as the library writes it, in several files."""
    from shardbook.finetune_neox.pretrained import library

    hf = library()
    torch.manual_seed(11)
    sizes = {**SIZES, "vocab_size": 256, "max_position_embeddings": 32}
    match kind:
        case "neox":
            config = hf.GPTNeoXConfig(**sizes)
        case "llama":
            config = hf.LlamaConfig(**sizes, num_key_value_heads=2, tie_word_embeddings=True)
        case "gpt2":
            config = hf.GPT2Config(n_embd=24, n_layer=2, n_head=4, vocab_size=256, n_positions=32)
    model = hf.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.01 * torch.randn_like(parameter)
    model.to(dtype).save_pretrained(folder, max_shard_size="20KB")


def go(*words: object) -> int:
    """What the command does on a rank whose process group is there."""
    return tuned(*words)[0]


def tuned(*words: object) -> tuple[int, Any]:
    """The same, and the model."""
    from shardbook.finetune_neox.finetune import begin, finetune
    from shardbook.finetune_neox.finetune_options import parse
    from shardbook.train.text import prepare

    options = parse([str(word) for word in words])
    beginning, adapters = begin(options)
    prepare(options)
    return finetune(options, beginning, adapters, CPU), beginning.model


def tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder by name, from whatever files it has."""
    from safetensors.torch import load_file

    return {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}


def changed(one: Path, other: Path) -> list[str]:
    """The names of the tensors that are not the same in two folders, to the bit."""
    left, right = tensors(one), tensors(other)
    assert left.keys() == right.keys()
    assert all(value.dtype == right[name].dtype for name, value in left.items())
    return sorted(n for n, value in left.items() if not torch.equal(as_bits(value), as_bits(right[n])))


def as_bits(value: Tensor) -> Tensor:
    return value.contiguous().view(-1).view(torch.uint8)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text and three models."""
    place = tmp_path_factory.mktemp("models")
    (place / "text.txt").write_text(TEXT, "utf-8")
    ranks.run(1, make_folders, place)
    return place


def make_folders(place: Path) -> None:
    make_folder(place / "neox")
    make_folder(place / "llama", "llama", torch.bfloat16)
    make_folder(place / "gpt2", "gpt2")


# --- the result ---


def tune_neox(home: Path, out: Path) -> dict[str, Any]:
    """Fine-tune the biases, and open the result as others do."""
    from shardbook.finetune_neox.pretrained import library

    figures = out.with_suffix(".json")
    words = ["--model", home / "neox", "--text", home / "text.txt", *RUN, "--out", out, "--json", figures]
    code, model = tuned(*words)
    assert code == 0
    dist.barrier()
    again = library().AutoModelForCausalLM.from_pretrained(out)
    before = library().AutoModelForCausalLM.from_pretrained(home / "neox")
    own = model.state_dict()
    pairs = zip(again.named_parameters(), before.parameters(), strict=True)
    return {
        "differ": [name for (name, one), other in pairs if not torch.equal(one, other)],
        "other than trained": [n for n, one in again.named_parameters() if not torch.equal(one, own[n])],
        "biases": [name for name, _ in before.named_parameters() if name.endswith("bias")],
        "figures": json.loads(figures.read_text()),
    }


@pytest.mark.full
def test_the_result_opens_and_differs_in_the_biases_only(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    # What nobody needs is not copied, least of all code. Links within the folder are followed.
    for name in ("modeling_neox.py", "pytorch_model.bin", "notes.txt", "consolidated.safetensors"):
        (home / "neox" / name).write_text("nothing", "utf-8")
    (home / "neox/LICENSE").symlink_to("notes.txt")
    for found in ranks.run(2, tune_neox, home, out):
        assert found["differ"] == found["biases"]
        assert found["other than trained"] == []
        figures = found["figures"]
        assert figures["losses"][-1] < figures["losses"][0] - 0.02
        # What the plan says, to the byte.
        assert figures["loading"] == figures["loading_forecast"]
        assert figures["steady"] == figures["steady_forecast"]
    # The files are those of the beginning, under their old names: this one holds `embed_out`.
    for name in ("modeling_neox.py", "pytorch_model.bin", "notes.txt", "consolidated.safetensors"):
        (home / "neox" / name).unlink()
    assert (out / "LICENSE").read_text("utf-8") == "nothing"
    same = sorted(path.name for path in (home / "neox").iterdir())
    assert sorted(path.name for path in out.iterdir()) == same
    assert len([name for name in same if name.endswith(".safetensors")]) > 2
    assert "embed_out.weight" in tensors(out)
    assert all(name.endswith("bias") for name in changed(home / "neox", out))
    assert len(changed(home / "neox", out)) == 2 * 6 + 1


def tune_others(home: Path, out: Path) -> None:
    text = ["--text", home / "text.txt"]
    llama = ["--model", home / "llama", "--train", "norm", "--precision", "bf16"]
    code, model = tuned(*llama, *text, *RUN, "--checkpoint", "non-reentrant", "--out", out / "llama")
    assert code == 0
    # What is trained has FP32 masters, and what is not stays as it was.
    for parameter in model.parameters():
        assert parameter.dtype is (torch.float32 if parameter.requires_grad else torch.bfloat16)
    gpt2 = ["--model", home / "gpt2", "--train", "all", "--stage", "2", "--accumulate", "2"]
    assert go(*gpt2, *text, *RUN, "--out", out / "gpt2") == 0


@pytest.mark.nightly
def test_other_models_tied_weights_and_16_bits(home: Path, tmp_path: Path) -> None:
    ranks.run(2, tune_others, home, tmp_path)
    llama = changed(home / "llama", tmp_path / "llama")
    assert llama
    assert all("norm" in name for name in llama)
    # It has no `lm_head`, since that is the embedding.
    assert "lm_head.weight" not in tensors(tmp_path / "llama")
    assert changed(home / "gpt2", tmp_path / "gpt2") == sorted(tensors(home / "gpt2"))


# --- the run ---


def tune_in_parts(home: Path, out: Path) -> dict[str, Any]:
    """A run that is left alone; one that goes on from its middle; one that gets a signal."""
    from shardbook.train import loop

    words = ["--model", home / "neox", "--text", home / "text.txt", *RUN]
    alone, parts, ended = (out / name for name in ("alone", "parts", "ended"))
    saved = ["--checkpoints", out / "run", "--save-every", "3"]
    assert go(*words, "--out", alone) == 0
    assert go(*words, *saved) == 0
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(out / "run" / "step-00000006")
    dist.barrier()
    assert go(*words, *saved, "--out", parts) == 0

    step, other = loop.step, ["--checkpoints", out / "signal", "--save-every", "100", "--out", ended]

    def signalled(run: Any) -> Any:
        if run.number == 2 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(run)

    loop.step = signalled
    code = go(*words, *other)
    return {"code": code, "out": ended.exists(), "saved": sorted((out / "signal").glob("step-*"))}


def go_on(home: Path, out: Path) -> int:
    other = ["--checkpoints", out / "signal", "--save-every", "100", "--out", out / "ended"]
    return go("--model", home / "neox", "--text", home / "text.txt", *RUN, *other)


@pytest.mark.nightly
def test_a_run_that_goes_on_ends_with_the_same_bits(home: Path, tmp_path: Path) -> None:
    for found in ranks.run(2, tune_in_parts, home, tmp_path):
        assert found["code"] == 143
        assert not found["out"]
        assert len(found["saved"]) == 1
    assert ranks.run(2, go_on, home, tmp_path) == [0, 0]
    assert changed(home / "neox", tmp_path / "alone")
    assert changed(tmp_path / "alone", tmp_path / "parts") == []
    assert changed(tmp_path / "alone", tmp_path / "ended") == []
    # What is frozen is no part of a checkpoint.
    from shardbook.state.file_formats import index_of

    held = index_of(tmp_path / "run" / "step-00000006").state_dict_metadata
    names = [name for name in held if name.startswith("model.")]
    assert len(names) == 2 * 6 + 1
    assert all(name.endswith("bias") for name in names)


def go_on_from_another(home: Path, out: Path) -> list[str]:
    words = ["--text", home / "text.txt", *SMALL, "--steps", "2", "--checkpoints", out / "run"]
    assert go(*words, "--layers", "2", "--width", "24") == 0
    said = []
    for other in (["--seed", "1"], ["--train", "final"]):
        with pytest.raises(Mistake) as refused:
            go(*words, "--layers", "2", "--width", "24", *other)
        said.append(str(refused.value))
    return said


@pytest.mark.full
def test_a_run_does_not_go_on_from_another_beginning(home: Path, tmp_path: Path) -> None:
    for seed, train in ranks.run(2, go_on_from_another, home, tmp_path):
        assert "--seed was 0 when the checkpoint was saved, and is 1 now" in seed
        assert "--train was biases when the checkpoint was saved, and is final now" in train


def tune_random(home: Path, out: Path) -> dict[str, Any]:
    """Train a random model, twice into the same folder, and open it."""
    from shardbook.finetune_neox.pretrained import library

    words = ["--text", home / "text.txt", *RUN, "--layers", "2", "--width", "24", "--out", out]
    assert go(*words) == 0
    dist.barrier()
    code, model = tuned(*words, "--replace", "--train", "all", "--no-offload")
    assert code == 0
    dist.barrier()
    opened = library().AutoModelForCausalLM.from_pretrained(out)
    whole = model.state_dict()
    names = [name for name, value in opened.state_dict().items() if not torch.equal(value, whole[name])]
    return {"differ": names, "held": len(whole), "cache": opened.config.use_cache}


@pytest.mark.full
def test_a_random_model_is_written_whole_and_replaces_the_one_before(home: Path, tmp_path: Path) -> None:
    for found in ranks.run(2, tune_random, home, tmp_path / "out"):
        assert found == {"differ": [], "held": 2 * 12 + 4, "cache": True}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


# --- LoRA ---


def tune_lora(home: Path, out: Path) -> dict[str, Any]:
    """Train LoRA matrices, and compare the model with the one that peft opens."""
    import peft

    from shardbook.finetune_neox.pretrained import library

    words = ["--model", home / "neox", "--text", home / "text.txt", *RUN]
    code, model = tuned(*words, "--train", "lora", "--lora-rank", "2", "--out", out)
    assert code == 0
    dist.barrier()
    plain = library().AutoModelForCausalLM.from_pretrained(home / "neox")
    tokens = torch.arange(16)[None]
    with torch.no_grad():
        first = plain(tokens).logits
        # The two libraries are not of one mind about a name.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            opened = peft.PeftModel.from_pretrained(plain, out).eval()
        logits = opened(tokens).logits
        own = model.eval()(tokens)
    return {"same": torch.equal(own, logits), "moved": not torch.equal(first, logits)}


@pytest.mark.full
def test_lora_matrices_open_in_peft(home: Path, tmp_path: Path) -> None:
    for found in ranks.run(2, tune_lora, home, tmp_path / "lora"):
        assert found == {"same": True, "moved": True}
    names = sorted(path.name for path in (tmp_path / "lora").iterdir())
    assert names == ["adapter_config.json", "adapter_model.safetensors"]
    assert len(tensors(tmp_path / "lora")) == 4


# --- the plan ---


def plan(words: list[Any]) -> tuple[int, str]:
    """What `--plan` prints, and the exit code."""
    import contextlib
    import io

    from shardbook.finetune_neox.finetune import main

    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = main([str(word) for word in words])
    return code, said.getvalue()


def plan_and_run(home: Path, out: Path, options: list[str]) -> dict[str, Any]:
    words = ["--model", home / "neox", "--text", home / "text.txt", *SMALL, "--steps", "3", *options]
    code, said = plan([*words, "--plan", "--ranks", "2", "--json", out / "plan.json"])
    assert code == 0
    assert go(*words, "--json", out / "run.json") == 0
    dist.barrier()
    planned = json.loads((out / "plan.json").read_text())
    return {"said": said, "plan": planned, "run": json.loads((out / "run.json").read_text())}


CASES: list[list[str]] = [
    ["--train", "biases"],
    ["--train", "all", "--stage", "0"],
    ["--train", "dense", "--stage", "1", "--precision", "bf16"],
    ["--train", "biases", "--stage", "2", "--offload"],
    ["--train", "all", "--offload", "--precision", "bf16"],
    ["--train", "lora", "--optimizer", "sgd"],
    ["--train", "all", "--checkpoint", "reentrant", "--precision", "fp16"],
]


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("options", rows(CASES, now=[CASES[2]]))
def test_a_rank_holds_what_the_plan_says(home: Path, tmp_path: Path, options: list[str]) -> None:
    found = ranks.run(2, plan_and_run, home, tmp_path, options)[0]
    planned, counted = found["plan"], found["run"]
    assert max(counted["loading"]) == planned["loading"]
    assert max(counted["steady"]) == planned["steady"]
    # Three steps were counted.
    assert max(counted["sent"]) <= 3 * planned["sent"] * 1.02 + 3000
    assert "It fits" in found["said"]


def plans_without_room(home: Path) -> tuple[int, str]:
    return plan(
        ["--model", home / "neox", "--plan", "--ranks", "2", "--memory", "0.00001", "--context", "16"]
    )


def test_the_plan_says_what_does_not_fit(home: Path) -> None:
    ((code, said),) = ranks.run(1, plans_without_room, home)
    assert code == 1
    assert "It does not fit" in said


# --- the command ---


@pytest.mark.nightly
def test_the_command_itself(home: Path, tmp_path: Path) -> None:
    words = ["--model", str(home / "neox"), "--text", str(home / "text.txt"), *RUN, "--sample", "5"]
    run = start(*TORCHRUN, "2", "-m", "shardbook.finetune_neox", *words, "--out", str(tmp_path / "out"))
    assert run.returncode == 0, run.stderr
    assert "13 of them trained" not in run.stdout
    assert "loss, last step" in run.stdout
    assert all(name.endswith("bias") for name in changed(home / "neox", tmp_path / "out"))
    run = start(*TORCHRUN, "2", "-m", "shardbook.finetune_neox", *words, "--out", str(tmp_path / "out"))
    assert run.returncode == 1
    assert run.stderr.count("is not empty; name another folder, or add --replace") == 1
