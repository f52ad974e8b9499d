r"""# Opening a pretrained model

> A pretrained model is first built without memory, from its configuration and the heads
> of its files.

The `transformers` library stores a model in a folder:

| file | content |
|---|---|
| `config.json` | the architecture and its sizes |
| `model.safetensors` | all weights, if one file is enough |
| `model-00001-of-00002.safetensors`, … | otherwise a part of the weights |
| `model.safetensors.index.json` | with several files: which name is in which file |
| `tokenizer.json` | the tokenizer |

This chapter reads no weights. [The head of each file](tensor_file.py) lists its tensors
and the positions of their bytes. From the heads, the program can build the model
without memory, compare the model with the files, and plan the memory of a rank. The
modules of this model are enough to [choose the
units](#module/choosing-the-units-of-a). [The weights are
read](tuned_folder.py#module/loading-a-model-into-shards) after sharding.

Some old files have other names than the present model. The library has a list of
renamings for them, and this program uses the list in both directions. A weight is found
under its name in the file, and the result is [written](tuned_folder.py) under the same
name.

Without `--model` the run begins with a random GPT-NeoX of a few layers, whose tokens are
bytes. You can train it in seconds on any machine.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from torch import nn

from shardbook.command import Mistake
from shardbook.state.folder_names import places_of
from shardbook.state.tensor_file import Place
from shardbook.train.text import load

__all__ = ["Pretrained", "begin_with", "blocks_of", "library", "units_of"]


@dataclass(slots=True)
class Pretrained:
    """The model with which a run begins. A checkpoint of the run can be loaded only with the same one.

    :param folder: the folder of the model; `None` for a random model
    :param config: the library's configuration of the model
    :param model: the model without memory
    :param places: the place of each tensor in the folder, by its name there
    :param stored: for each name in the model, the name in the folder
    :param seed: the seed for the weights of a random model
    """

    folder: Path | None
    config: Any
    model: nn.Module
    places: dict[str, Place] = field(default_factory=dict)
    stored: dict[str, str] = field(default_factory=dict)
    seed: int = 0

    def state_dict(self) -> dict[str, Any]:
        """A short hash of the pretrained model."""
        made = hashlib.blake2b(digest_size=8)
        made.update(
            json.dumps(self.config.to_dict(), sort_keys=True, default=str).encode()
        )
        for file in sorted({place.file for place in self.places.values()}):
            made.update(sample_of(file))
        if self.folder is None:
            made.update(str(self.seed).encode())
        return {"model": made.hexdigest()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Compare the pretrained model of a checkpoint with this one.

        :raises ValueError: if they differ
        """
        if state != self.state_dict():
            raise ValueError(
                "the checkpoint was made from another model, and its own parameters are no "
                "part of it; name the model that the run began with"
            )


def begin_with(options: argparse.Namespace) -> Pretrained:
    """Build the model that the options name, without memory.

    :raises Mistake: if there is no such model, or it cannot be trained
    """
    if options.model is None:
        return random_neox(options)
    folder: Path = options.model
    config = config_in(folder)
    try:
        places = places_of(folder)
    except (OSError, ValueError) as error:
        raise Mistake(f"--model {error}") from error
    refuse_layers(folder, config, places)
    with describing(folder):
        model = without_memory(config)
    stored = names_in_folder(folder, model, places)
    refuse_unfit(folder, model, places, stored)
    refuse_sizes(options, config)
    return Pretrained(folder, config, model, places, stored)


def random_neox(options: argparse.Namespace) -> Pretrained:
    """Build a GPT-NeoX without memory, whose weights will be random."""
    width, vocabulary = options.width or 128, 256
    if options.tokenizer is not None:
        vocabulary = load(options.tokenizer).get_vocab_size()
    try:
        config = library().GPTNeoXConfig(
            vocab_size=vocabulary,
            hidden_size=width,
            num_hidden_layers=options.layers or 4,
            num_attention_heads=options.heads or 4,
            intermediate_size=4 * width,
            max_position_embeddings=options.context,
            bos_token_id=None,
            eos_token_id=None,
        )
        return Pretrained(None, config, without_memory(config), seed=options.seed)
    except ValueError as error:
        raise Mistake(f"--width {width} and --heads do not fit: {error}") from error


def without_memory(config: Any) -> nn.Module:
    """Build a model with shapes and without memory, in FP32.

    The cache of keys and values is turned off. It makes writing text faster, but in
    training it would only take memory.
    """
    own = copy.deepcopy(config)
    own.use_cache = False
    with torch.device("meta"):
        model: nn.Module = library().AutoModelForCausalLM.from_config(
            own, dtype=torch.float32, trust_remote_code=False
        )
    return model.train()


def names_in_folder(
    folder: Path, model: Any, places: dict[str, Place]
) -> dict[str, str]:
    """For each of the model's tensors in a folder, find its name there."""
    mapping = import_module("transformers.conversion_mapping")
    loading = import_module("transformers.core_model_loading")
    known = mapping.get_model_conversion_mapping(model)
    renamings = [each for each in known if isinstance(each, loading.WeightRenaming)]
    conversions = [each for each in known if isinstance(each, loading.WeightConverter)]
    held = model.state_dict()
    found = {}
    for name in places:
        own, changed = loading.rename_source_key(
            name, renamings, conversions, model.base_model_prefix, held
        )
        if changed is not None:
            raise Mistake(
                f"--model {folder}: {name} has another form there than in a "
                f"{type(model).__name__}; open the folder with from_pretrained, and use "
                "what save_pretrained writes"
            )
        if own in held:
            found[own] = name
    return found


def sample_of(file: Path) -> bytes:
    """The size of a file and 64 short pieces, so that a large file takes no longer than a small one."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        parts = [size.to_bytes(8, "little")]
        for index in range(64):
            opened.seek(index * size // 64)
            parts.append(opened.read(64))
    return b"".join(parts)


def library() -> Any:
    """Import the transformers library, without its messages and without network access.

    :raises Mistake: if it is not installed
    """
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        found = import_module("transformers")
    except ModuleNotFoundError as error:
        raise Mistake(
            "fine-tuning needs the library transformers: pip install 'shardbook[finetune]'"
        ) from error
    found.logging.set_verbosity_error()
    found.utils.logging.disable_progress_bar()
    return found


# sidelit: depth Folders that hold no model, another one, or numbers that cannot be trained.

TRAINABLE = (torch.float32, torch.bfloat16, torch.float16)


def config_in(folder: Path) -> Any:
    """Read the configuration of the model.

    :raises Mistake: if the folder has none, or the library does not know the model
    """
    if not folder.is_dir():
        raise Mistake(f"--model {folder}: there is no such folder")
    if not (folder / "config.json").is_file():
        raise Mistake(
            f"--model {folder}: there is no config.json; name a folder that "
            "save_pretrained has written"
        )
    auto = library()
    with describing(folder):
        config = auto.AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    if type(config) not in auto.AutoModelForCausalLM._model_mapping:
        raise Mistake(
            f"--model {folder}: {config.model_type} is no causal language model of the "
            "transformers library"
        )
    if getattr(config, "quantization_config", None) is not None:
        raise Mistake(
            f"--model {folder}: the weights are quantized; take a folder with float32, "
            "bfloat16 or float16"
        )
    return config


@contextmanager
def describing(folder: Path) -> Iterator[None]:
    """A block in which the library reads a configuration, or builds a model from it.

    The library looks at few values before it uses them, so a wrong one can cause any error.

    :raises Mistake: with the library's reason
    """
    try:
        yield
    except Exception as error:
        # The library's messages have many lines, and its advice is for other programs.
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise Mistake(
            f"--model {folder}: config.json describes no model that transformers "
            f"{library().__version__} can build: {shorten(why, 160, placeholder=' …')}"
        ) from error


def refuse_layers(folder: Path, config: Any, places: dict[str, Place]) -> None:
    """Refuse a configuration without layers, or with more than the files have tensors.

    Even without memory for its weights, a model of a million layers takes hours to build.

    :raises Mistake: naming both numbers
    """
    layers = getattr(config.get_text_config(), "num_hidden_layers", None)
    if isinstance(layers, int) and not 0 < layers <= len(places):
        raise Mistake(
            f"--model {folder}: config.json has {layers} layers, and the files hold "
            f"{len(places)} tensors; take both from the same model"
        )


def refuse_unfit(
    folder: Path, model: nn.Module, places: dict[str, Place], stored: dict[str, str]
) -> None:
    """Refuse a folder that lacks a parameter, or holds one in a wrong shape or dtype.

    :raises Mistake: naming the parameter
    """
    for names, parameter in names_of(model).items():
        here = [name for name in names if name in stored]
        if not here:
            raise Mistake(f"--model {folder}: the files hold no {names[0]}")
        for name in here:
            place = places[stored[name]]
            if place.shape != tuple(parameter.shape):
                raise Mistake(
                    f"--model {folder}: {name} has shape {place.shape} in the files, and "
                    f"{tuple(parameter.shape)} by config.json"
                )
            if place.dtype not in TRAINABLE:
                raise Mistake(
                    f"--model {folder}: {name} is {str(place.dtype).removeprefix('torch.')}; "
                    "only float32, bfloat16 and float16 are trained"
                )


def names_of(model: nn.Module) -> dict[tuple[str, ...], nn.Parameter]:
    """The names of each parameter; a tied parameter has several."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return {tuple(each): parameter for parameter, each in names.items()}


def refuse_sizes(options: argparse.Namespace, config: Any) -> None:
    """Refuse windows that are too long for the model, and tokens outside of its vocabulary.

    :raises Mistake: naming the option
    """
    text = config.get_text_config()
    longest = getattr(text, "max_position_embeddings", None)
    if longest is not None and options.context > longest:
        raise Mistake(
            f"--context is {options.context}, but the model sees at most {longest} tokens"
        )
    tokens, what = 256, "a byte is a token"
    if options.tokenizer is not None:
        tokens, what = load(options.tokenizer).get_vocab_size(), str(options.tokenizer)
    if tokens > text.vocab_size:
        raise Mistake(
            f"--model {options.model} has a vocabulary of {text.vocab_size}, but the text "
            f"has {tokens} tokens ({what}); name its own tokenizer with --tokenizer"
        )


# sidelit: core


# ## Choosing the units of a transformers model
#
# > Each block of the model is a unit, and so are the embedding and the output layer.
#
# Most models of the `transformers` library consist of an embedding, a chain of equal
# blocks, and an output layer. A model of the library names the class of its blocks,
# because a block must not be divided between devices. In a GPT-NeoX this class is
# `GPTNeoXLayer`.
#
# The embedding and the output layer have a row for each token of the vocabulary, so each
# is about as large as a block. As parts of the root they would be whole during the whole
# forward pass. So each of them is a unit of its own. If the two are tied, they are one
# parameter, which [belongs to the root](parameter_sites.py#sites_by_unit), because both
# modules use it.


def units_of(model: Any, blocks: list[nn.Module]) -> Callable[[str, nn.Module], bool]:
    """Make the function by which [`shard`](model.py#shard) chooses units."""
    ends = [model.get_input_embeddings(), model.get_output_embeddings()]
    chosen = {id(module) for module in (*blocks, *ends)}
    return lambda name, module: id(module) in chosen


def blocks_of(model: Any, named: str | None = None) -> list[nn.Module]:
    """Find the blocks of a model.

    :param named: the name of their class; `None` for the class that the library names
    :raises Mistake: if the model has no such module
    """
    names = {named} if named is not None else set(model._no_split_modules or ())
    found = [each for each in model.modules() if type(each).__name__ in names]
    if named is not None and not found:
        raise Mistake(
            f"--units {named}: the model has no module of that class; its modules are "
            + ", ".join(sorted({type(each).__name__ for each in model.modules()}))
        )
    if not found:
        raise Mistake(
            f"the library does not say what the blocks of a {type(model).__name__} are; "
            "name their class with --units"
        )
    return found
