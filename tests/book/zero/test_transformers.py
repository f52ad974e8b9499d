"""Models that others wrote: five of the transformers library, small, with random weights; no file is read.

Each model is trained under `DistributedDataParallel` and, at every stage, under `shard`: on the same two
ranks, with the same data, compared bit for bit. One run of two ranks studies one model, and the tests read
what it found.
"""

from __future__ import annotations

import inspect
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import ranks
from book.toys import plain_gradients, whole_gradients
from tiers import rows

pytestmark = pytest.mark.full

STAGES = (0, 1, 2, 3)
STEPS = 3
VOCABULARY = 40
KINDS = ("bert", "gpt_neox", "llama", "t5", "vit")
WRITERS = ("gpt_neox", "llama", "t5")
SIZES = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40}
TEXT = {**SIZES, "vocab_size": VOCABULARY, "max_position_embeddings": 32}

Record = dict[str, Any]
Loss = Callable[[Any, dict[str, Tensor]], Tensor]


def library() -> Any:
    """The transformers library, kept off the network and silent."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def build(kind: str, *, dropout: float = 0.0) -> tuple[Any, type[nn.Module]]:
    """A model and the class of its blocks; the same weights on every call."""
    hf = library()
    torch.manual_seed(7)
    match kind:
        case "bert":
            from transformers.models.bert.modeling_bert import BertLayer

            config = hf.BertConfig(**TEXT, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
            return hf.BertForMaskedLM(config), BertLayer
        case "gpt_neox":
            from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXLayer

            return hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**TEXT)), GPTNeoXLayer
        case "llama":
            from transformers.models.llama.modeling_llama import LlamaDecoderLayer

            config = hf.LlamaConfig(**TEXT, num_key_value_heads=2, tie_word_embeddings=True)
            return hf.LlamaForCausalLM(config), LlamaDecoderLayer
        case "t5":
            from transformers.models.t5.modeling_t5 import T5Block

            config = hf.T5Config(
                vocab_size=VOCABULARY,
                d_model=24,
                d_kv=6,
                d_ff=40,
                num_layers=2,
                num_heads=4,
                dropout_rate=0.0,
                decoder_start_token_id=0,
            )
            return hf.T5ForConditionalGeneration(config), T5Block
        case "vit":
            from transformers.models.vit.modeling_vit import ViTLayer

            config = hf.ViTConfig(**SIZES, image_size=8, patch_size=4, num_labels=5)
            return hf.ViTForImageClassification(config), ViTLayer
    raise ValueError(kind)


def inputs(kind: str, rank: int, step: int) -> dict[str, Tensor]:
    """What a rank reads in a step. The texts of the ranks differ in length, and their ends are masked."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    if kind == "vit":
        pixels = torch.randn(3, 3, 8, 8, generator=generator)
        return {"pixel_values": pixels, "labels": torch.randint(5, (3,), generator=generator)}
    length = 6 + rank
    tokens = torch.randint(3, VOCABULARY, (3, length), generator=generator)
    mask = (torch.arange(length) < torch.tensor([[length], [length - 1], [length - 2]])).long()
    return {"input_ids": tokens, "attention_mask": mask, "labels": tokens.masked_fill(mask == 0, -100)}


def optimizer_for(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW with groups by name: matrices decay, biases and norms do not."""
    named = list(model.named_parameters())
    light = {name for name, _ in named if "bias" in name or "norm" in name.lower()}
    groups = [
        {"params": [p for name, p in named if name not in light], "weight_decay": 0.1},
        {"params": [p for name, p in named if name in light], "weight_decay": 0.0},
    ]
    assert all(group["params"] for group in groups)
    return torch.optim.AdamW(groups, lr=1e-2)


def train(kind: str, model: nn.Module, gradients: Callable[[], dict[str, Tensor]]) -> Iterator[Record]:
    """Three steps, and what can be seen of each: every tensor of the output, and all gradients."""
    rank = dist.get_rank()
    optimizer = optimizer_for(model)
    model.train()
    for step in range(STEPS):
        torch.manual_seed(1000 * rank + step)
        output = model(**inputs(kind, rank, step), output_hidden_states=True)
        seen = {
            f"{type(output).__name__}.{name}[{index}]": value.detach().clone()
            for name in output
            for index, value in enumerate(tree_leaves(output[name]))
            if isinstance(value, Tensor)
        }
        assert any("hidden_states" in name for name in seen)
        output.loss.backward()
        yield {**seen, **{f"gradient of {name}": value for name, value in gradients().items()}}
        optimizer.step()
        optimizer.zero_grad()


# How a model is checkpointed: not at all, or as the argument `use_reentrant` says.
CHECKPOINTS = (None, False, True)


def prepare(model: Any, checkpoint: bool | None) -> Any:
    """Switch on the library's own checkpointing of activations."""
    if checkpoint is not None:
        # On Python 3.10 there is only an older release, which has the older name.
        older = "gradient_checkpointing_enable"
        enable = getattr(model, "activation_checkpointing_enable", None) or getattr(model, older)
        enable({"use_reentrant": checkpoint})
    return model


def under_ddp(kind: str, checkpoint: bool | None, **options: Any) -> tuple[list[Record], dict[str, Tensor]]:
    model = prepare(build(kind, **options)[0], checkpoint)
    steps = list(train(kind, nn.parallel.DistributedDataParallel(model), partial(plain_gradients, model)))
    return steps, model.state_dict()


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    """The whole gradients of a sharded model, without its buffers."""
    names = dict(model.named_parameters(remove_duplicate=False))
    return {name: value for name, value in whole_gradients(model).items() if name in names}


def differing(found: Record, expected: Record) -> list[str]:
    """The names of what is not the same to the bit."""
    odd = found.keys() ^ expected.keys()
    both = found.keys() & expected.keys()
    return sorted([*odd, *(name for name in both if not torch.equal(found[name], expected[name]))])


def training_that_differs(
    kind: str, model: Any, expected: tuple[list[Record], dict[str, Tensor]]
) -> list[list[str]]:
    """What differs from the expected: one list for each step, and one for the weights at the end."""
    steps, weights = expected
    found = train(kind, model, partial(gradients_of, model))
    differences = [differing(step, wanted) for step, wanted in zip(found, steps, strict=True)]
    return [*differences, differing(model.state_dict(), weights)]


def looks(model: Any) -> Record:
    """What a program that uses the model can ask of it without computing."""
    named = list(model.named_parameters())
    return {
        "class": type(model),
        "parameters": [(name, id(parameter)) for name, parameter in named],
        "tied": [name for name, _ in model.named_parameters(remove_duplicate=False)],
        "buffers": [name for name, _ in model.named_buffers()],
        "modules": [(name, type(module)) for name, module in model.named_modules()],
        "signature": str(inspect.signature(model.forward)),
        "state": [(name, value.shape, value.dtype) for name, value in model.state_dict().items()],
        "addresses": len({value.untyped_storage()._cdata for value in model.state_dict().values()}),
    }


def written(model: Any, **options: Any) -> list[list[int]]:
    """What a model writes after a prompt that is the same on all ranks."""
    prompt = inputs("llama", 0, 9)["input_ids"][:2, :4]
    mask = torch.ones_like(prompt)
    text = model.generate(prompt, attention_mask=mask, max_new_tokens=6, do_sample=False, **options)
    return text.tolist()  # type: ignore[no-any-return]


def writes(model: Any, plain: Any) -> Record:
    """Whether both write the same, in four ways, and the warnings on the way."""
    rank = dist.get_rank()
    ways: dict[str, Record] = {"greedy": {}, "two beams": {"num_beams": 2}, "no cache": {"use_cache": False}}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        same = {way: written(model, **options) == written(plain, **options) for way, options in ways.items()}
        # Prompts and texts of different lengths: the rank that is done first goes on with the others.
        prompt = inputs("llama", rank, 9)["input_ids"][:1, : 3 + rank]
        options = {"max_new_tokens": 3 + 3 * rank, "do_sample": False}
        texts = (model.generate(prompt, synced_gpus=True, **options), plain.generate(prompt, **options))
        same["each rank its own"] = torch.equal(*texts)
    return {"same": same, "said": [str(warning.message) for warning in said]}


def with_hidden_states(model: Any, x: dict[str, Tensor]) -> Tensor:
    output = model(**x, output_hidden_states=True)
    states = output.get("hidden_states") or output.encoder_hidden_states
    loss: Tensor = output.loss + sum(state.square().mean() for state in states)
    return loss


def from_embeddings(model: Any, x: dict[str, Tensor]) -> Tensor:
    embedded = model.get_input_embeddings()(x["input_ids"])
    loss: Tensor = model(inputs_embeds=embedded, attention_mask=x["attention_mask"], labels=x["labels"]).loss
    return loss


def body_and_head(model: Any, x: dict[str, Tensor]) -> Tensor:
    logits = model.lm_head(model.model(x["input_ids"]).last_hidden_state)
    return F.cross_entropy(logits.flatten(0, 1), x["labels"].flatten())


def through_a_cache(model: Any, x: dict[str, Tensor]) -> Tensor:
    first = model(x["input_ids"], use_cache=True)
    second = model(x["input_ids"], past_key_values=first.past_key_values, labels=x["labels"])
    loss: Tensor = second.loss + first.logits.square().mean()
    return loss


def one_encoding_two_decodings(model: Any, x: dict[str, Tensor]) -> Tensor:
    mask = x["attention_mask"]
    encoded = model.encoder(x["input_ids"], mask)
    decode = partial(model, encoder_outputs=encoded, attention_mask=mask)
    loss: Tensor = decode(labels=x["labels"]).loss + decode(labels=x["labels"].flip(0)).loss
    return loss


def encoder_alone(model: Any, x: dict[str, Tensor]) -> Tensor:
    state: Tensor = model.encoder(x["input_ids"]).last_hidden_state
    return state.square().mean()


USES: dict[str, tuple[Loss, ...]] = {
    "bert": (with_hidden_states,),
    "gpt_neox": (with_hidden_states,),
    "llama": (with_hidden_states, from_embeddings, body_and_head, through_a_cache),
    "t5": (with_hidden_states, one_encoding_two_decodings, encoder_alone),
    "vit": (with_hidden_states,),
}


def uses_that_differ(kind: str, model: nn.Module, plain: nn.Module) -> dict[str, list[str]]:
    """For each use of a model, the gradients that are not the mean of what the ranks' plain models get.

    Each use comes twice, and the two gradients are added up.
    """
    x = inputs(kind, dist.get_rank(), 5)
    found = {}
    for use in USES[kind]:
        for one in (model, plain):
            one.zero_grad()
            for _ in range(2):
                use(one, x).backward()
        means = plain_gradients(plain)
        for gradient in means.values():
            dist.all_reduce(gradient)
            gradient /= dist.get_world_size()
        found[use.__name__] = differing(gradients_of(model), means)
    return found


def saved(model: Any) -> tuple[int, Any]:
    """How many tensors the library's own file holds, and the model read from it."""
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    model.save_pretrained(folder[0], is_main_process=dist.get_rank() == 0)
    dist.barrier()
    from safetensors import safe_open

    with safe_open(f"{folder[0]}/model.safetensors", framework="pt") as file:
        count = len(list(file.keys()))
    return count, type(model).from_pretrained(folder[0])


def built_late(kind: str, stage: int) -> Any:
    """A model that gets its memory and its values where it is sharded, in the library's own way."""
    from shardbook import shard

    with torch.device("meta"):
        model, block = build(kind)
    # The library ties weights and computes buffers, such as angles of rotation, in its own functions.
    return shard(model, stage=stage, units=block, init=model._init_weights)


def preload() -> None:
    """Import the library, and the part of it that each model needs."""
    for kind in KINDS:
        build(kind)


def study(kind: str) -> dict[int, Record]:
    """All that the tests want to know of one model, by stage."""
    expected = {checkpoint: under_ddp(kind, checkpoint) for checkpoint in CHECKPOINTS}
    return {stage: study_stage(kind, stage, expected) for stage in STAGES}


def study_stage(kind: str, stage: int, expected: dict[bool | None, Any]) -> Record:
    from shardbook import shard

    found: Record = {"training": {}}
    for checkpoint in CHECKPOINTS[::-1]:
        model, block = build(kind)
        before = looks(model)
        found["same object"] = shard(model, stage=stage, units=block) is model
        after = looks(model)
        found["changed"] = [name for name in before if before[name] != after[name]]
        prepare(model, checkpoint)
        found["training"][checkpoint] = training_that_differs(kind, model, expected[checkpoint])

    plain, _ = build(kind)
    plain.load_state_dict(model.state_dict())
    for one in (model, plain):
        one.eval()
    x = inputs(kind, dist.get_rank(), 9)
    with torch.no_grad():
        logits = plain(**x).logits
        found["logits"] = torch.equal(model(**x).logits, logits)
        found["count"], back = saved(model)
        found["logits of the file"] = torch.equal(back.eval()(**x).logits, logits)
        late = built_late(kind, stage)
        late.load_state_dict(plain.state_dict())
        found["logits of the late"] = torch.equal(late.eval()(**x).logits, logits)
    found["parameters"] = len(before["parameters"])
    if kind in WRITERS:
        found["writes"] = writes(model, plain)
    for one in (model, plain):
        one.train()
    found["uses"] = uses_that_differ(kind, model, plain)
    return found


@cache
def outcome(kind: str) -> list[dict[int, Record]] | ranks.RanksFailed:
    """What the study found, or how it failed; so that it runs once either way."""
    try:
        return ranks.run(2, study, kind, timeout=200)
    except ranks.RanksFailed as failed:
        return failed


def found(kind: str) -> list[dict[int, Record]]:
    studied = outcome(kind)
    if isinstance(studied, ranks.RanksFailed):
        raise studied
    return studied


SAME: list[list[str]] = [[]] * (STEPS + 1)
STUDIED = [(kind, stage) for kind in KINDS for stage in STAGES]
NOW = [(kind, stage) for kind in ("llama",) for stage in STAGES]
every = pytest.mark.parametrize(("kind", "stage"), rows(STUDIED, now=NOW))


@pytest.mark.cases(ci=11)
@every
@pytest.mark.parametrize("checkpoint", CHECKPOINTS, ids=["plain", "checkpointed", "checkpointed-reentrant"])
def test_training_equals_ddp_bit_for_bit(kind: str, stage: int, checkpoint: bool | None) -> None:
    for rank in found(kind):
        assert rank[stage]["training"][checkpoint] == SAME


@pytest.mark.cases(ci=4)
@every
def test_the_model_stays_what_it_was(kind: str, stage: int) -> None:
    for rank in found(kind):
        assert rank[stage]["same object"]
        assert rank[stage]["changed"] == []


@pytest.mark.cases(ci=4)
@every
def test_a_plain_model_takes_what_was_saved(kind: str, stage: int) -> None:
    for rank in found(kind):
        assert rank[stage]["logits"]
        assert rank[stage]["logits of the file"]
        # A tied weight stands in the file once.
        assert rank[stage]["count"] == rank[stage]["parameters"]


@pytest.mark.cases(ci=4)
@every
def test_a_model_built_on_the_meta_device_takes_what_was_saved(kind: str, stage: int) -> None:
    for rank in found(kind):
        assert rank[stage]["logits of the late"]


@pytest.mark.cases(ci=4)
@every
def test_a_model_and_its_parts_are_used_in_other_ways(kind: str, stage: int) -> None:
    for rank in found(kind):
        assert rank[stage]["uses"] == {use.__name__: [] for use in USES[kind]}


WRITTEN = [(kind, stage) for kind in WRITERS for stage in STAGES]


@pytest.mark.cases(ci=4)
@pytest.mark.parametrize(("kind", "stage"), rows(WRITTEN, now=NOW))
def test_a_sharded_model_writes_what_the_plain_one_writes(kind: str, stage: int) -> None:
    for rank in found(kind):
        writes = rank[stage]["writes"]
        assert len(writes["same"]) == 4
        assert all(writes["same"].values())
        # The decoder of T5 runs again and again after one run of the encoder. That is another order than that
        # of an evaluation, and is said once, unless nothing is ever gathered.
        orders = [said for said in writes["said"] if said.startswith("the units run in another order")]
        assert orders == writes["said"]
        assert len(orders) == (1 if kind == "t5" and stage else 0)


def with_dropout() -> dict[tuple[int, bool | None], list[list[str]]]:
    from shardbook import shard

    found = {}
    for checkpoint in CHECKPOINTS:
        expected = under_ddp("bert", checkpoint, dropout=0.1)
        for stage in STAGES:
            model, block = build("bert", dropout=0.1)
            model = prepare(shard(model, stage=stage, units=block), checkpoint)
            found[stage, checkpoint] = training_that_differs("bert", model, expected)
    return found


@pytest.mark.nightly
def test_dropout_drops_what_it_drops_under_ddp() -> None:
    for found in ranks.run(2, with_dropout, timeout=200):
        assert len(found) == len(STAGES) * len(CHECKPOINTS)
        assert all(differences == SAME for differences in found.values())


def folder_and_back(kind: str, place: Path) -> tuple[dict[str, Tensor], ...]:
    """What is there after a model went out as a folder, and after the library's own came in."""
    from shardbook import load_safetensors, save_safetensors, shard

    plain, block = build(kind)
    model = shard(build(kind)[0], units=block)
    save_safetensors(model, place / "ours", shard_bytes=4000, also=model.config.save_pretrained)
    opened = type(plain).from_pretrained(place / "ours")
    if dist.get_rank() == 0:
        plain.save_pretrained(place / "theirs", max_shard_size=4000)
    dist.barrier()
    for parameter in model.parameters():
        parameter.data.fill_(1.0)
    load_safetensors(model, place / "theirs")
    return dict(plain.state_dict()), dict(opened.state_dict()), dict(model.state_dict())


@pytest.mark.cases(ci=1)
@pytest.mark.parametrize("kind", rows(KINDS, now=["t5", "gpt_neox"]))
def test_from_pretrained_opens_a_folder_and_a_folder_of_save_pretrained_is_loaded(
    kind: str, tmp_path: Path
) -> None:
    for plain, *others in ranks.run(2, folder_and_back, kind, tmp_path):
        for other in others:
            assert plain.keys() == other.keys()
            assert all(torch.equal(plain[name], other[name]) for name in plain)
    ours, theirs = (
        json.loads((tmp_path / whose / "model.safetensors.index.json").read_text())
        for whose in ("ours", "theirs")
    )
    assert ours["weight_map"].keys() == theirs["weight_map"].keys()
    assert len({*ours["weight_map"].values()}) > 3
