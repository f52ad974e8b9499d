"""Models that others wrote: of `transformers`, `diffusers` and `peft`, small, with random weights.

No file is read. Each is trained at every stage on two ranks, each rank with its own data,
beside a plain copy whose gradients
are averaged in rank order. Losses, gradients and weights are compared bit for bit. The families were chosen
for what is unusual in them: tied heads, idle experts, encoders with decoders, two towers, convolutions with
batch norm, state spaces, adapters, parametrized weights. Where a model gives its hidden states and
attentions, they are part of the loss.

Each is studied in a run of its own. The libraries are imported once, before the ranks of all runs are forked.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import ranks
from tiers import rows

STAGES = (0, 1, 2, 3)
STEPS = 3
WORDS = 40

Inputs = Callable[[torch.Generator], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """One model: how it is built, which classes are its units, what it reads."""

    build: Callable[[Any], nn.Module]
    units: tuple[str, ...]
    inputs: Inputs
    # Asked of the forward pass beside the inputs.
    options: dict[str, Any] = field(default_factory=dict)
    # What the loss leaves out of the output.
    unused: tuple[str, ...] = ()


def tokens(generator: torch.Generator, count: int = 2, length: int = 6) -> Tensor:
    return torch.randint(3, WORDS, (count, length), generator=generator)


def text(generator: torch.Generator) -> dict[str, Any]:
    words = tokens(generator)
    return {"input_ids": words, "labels": words.clone()}


def no_labels(generator: torch.Generator) -> dict[str, Any]:
    return {"input_ids": tokens(generator)}


def picture(generator: torch.Generator, size: int = 32) -> Tensor:
    return torch.randn(2, 3, size, size, generator=generator)


def labelled_picture(generator: torch.Generator) -> dict[str, Any]:
    return {"pixel_values": picture(generator), "labels": torch.randint(4, (2,), generator=generator)}


def text_and_picture(generator: torch.Generator) -> dict[str, Any]:
    return {"input_ids": tokens(generator), "pixel_values": picture(generator), "return_loss": True}


def sound(generator: torch.Generator) -> dict[str, Any]:
    return {"input_features": torch.randn(2, 8, 24, generator=generator), "labels": tokens(generator)}


def wave(generator: torch.Generator) -> dict[str, Any]:
    return {"input_values": torch.randn(2, 200, generator=generator)}


def latent(generator: torch.Generator) -> dict[str, Any]:
    return {"sample": torch.randn(2, 4, 8, 8, generator=generator), "timestep": torch.tensor([3, 9])}


def latent_with_words(generator: torch.Generator) -> dict[str, Any]:
    states = torch.randn(2, 5, 16, generator=generator)
    return {**latent(generator), "encoder_hidden_states": states}


def latent_with_class(generator: torch.Generator) -> dict[str, Any]:
    given = latent(generator)
    return {
        "hidden_states": given["sample"],
        "timestep": given["timestep"],
        "class_labels": torch.tensor([1, 2]),
    }


def image_sample(generator: torch.Generator) -> dict[str, Any]:
    return {"sample": torch.randn(2, 3, 16, 16, generator=generator)}


SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}
TEXT: dict[str, Any] = {
    **SIZES,
    "vocab_size": WORDS,
    "max_position_embeddings": 32,
    "attn_implementation": "eager",
}
STATES: dict[str, Any] = {"output_hidden_states": True, "output_attentions": True}
TOWER: dict[str, Any] = {**SIZES, "projection_dim": 8}


def transformer(model: str, config: str, **options: Any) -> Callable[[Any], nn.Module]:
    """The function that builds a model of the transformers library."""

    def build(library: Any) -> nn.Module:
        made: nn.Module = getattr(library, model)(getattr(library, config)(**options))
        return made

    return build


def diffuser(model: str, **options: Any) -> Callable[[Any], nn.Module]:
    """The function that builds a model of the diffusers library."""

    def build(library: Any) -> nn.Module:
        import diffusers

        made: nn.Module = getattr(diffusers, model)(**options)
        return made

    return build


def towers(model: str, config: str) -> Callable[[Any], nn.Module]:
    """A tower for words beside one for pictures; a temperature belongs to neither."""

    def build(library: Any) -> nn.Module:
        words = {
            **TOWER,
            "vocab_size": WORDS,
            "max_position_embeddings": 32,
            "eos_token_id": 2,
            "bos_token_id": 1,
        }
        pictures = {**TOWER, "image_size": 32, "patch_size": 16}
        made: nn.Module = getattr(library, model)(
            getattr(library, config)(text_config=words, vision_config=pictures)
        )
        return made

    return build


def adapted(**options: Any) -> Callable[[Any], nn.Module]:
    """A frozen model with adapters that are trained."""

    def build(library: Any) -> nn.Module:
        import peft

        config = library.LlamaConfig(**TEXT, num_key_value_heads=2)
        wanted = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], **options)
        made: nn.Module = peft.get_peft_model(library.LlamaForCausalLM(config), wanted)
        return made

    return build


CASES: dict[str, Case] = {
    "gpt2, a tied head": Case(
        transformer("GPT2LMHeadModel", "GPT2Config", n_embd=16, n_layer=2, n_head=2, vocab_size=WORDS,
                    n_positions=32, attn_implementation="eager"),
        ("GPT2Block",), text, STATES),
    "opt": Case(
        transformer("OPTForCausalLM", "OPTConfig", hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                    ffn_dim=24, vocab_size=WORDS, max_position_embeddings=32, word_embed_proj_dim=16,
                    attn_implementation="eager", layerdrop=0.0),
        ("OPTDecoderLayer",), text, STATES),
    "gemma2": Case(
        transformer("Gemma2ForCausalLM", "Gemma2Config", **TEXT, num_key_value_heads=1, head_dim=8),
        ("Gemma2DecoderLayer",), text, STATES),
    "phi": Case(transformer("PhiForCausalLM", "PhiConfig", **TEXT), ("PhiDecoderLayer",), text, STATES),
    "bloom": Case(
        transformer("BloomForCausalLM", "BloomConfig", hidden_size=16, n_layer=2, n_head=2, vocab_size=WORDS),
        ("BloomBlock",), text, STATES),
    "mixtral, idle experts": Case(
        transformer("MixtralForCausalLM", "MixtralConfig", **TEXT, num_key_value_heads=1, num_local_experts=6,
                    num_experts_per_tok=1, output_router_logits=True),
        ("MixtralDecoderLayer",), text, STATES),
    "mamba, a state space": Case(
        transformer("MambaForCausalLM", "MambaConfig", hidden_size=16, num_hidden_layers=2, vocab_size=WORDS,
                    state_size=4),
        ("MambaBlock",), text, {"output_hidden_states": True}),
    "mamba2, a state space": Case(
        transformer("Mamba2ForCausalLM", "Mamba2Config", hidden_size=16, num_hidden_layers=2,
        vocab_size=WORDS,
                    state_size=4, num_heads=4, head_dim=8, n_groups=2, chunk_size=4),
        ("Mamba2Block",), text, {"output_hidden_states": True}),
    "rwkv": Case(
        transformer("RwkvForCausalLM", "RwkvConfig", hidden_size=16, num_hidden_layers=2, vocab_size=WORDS,
                    attention_hidden_size=16, context_length=32),
        ("RwkvBlock",), text, {"output_hidden_states": True}),
    "bart, an encoder with a decoder": Case(
        transformer("BartForConditionalGeneration", "BartConfig", d_model=16, encoder_layers=2,
        decoder_layers=2,
                    encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=24,
                    decoder_ffn_dim=24,
                    vocab_size=WORDS, max_position_embeddings=32, dropout=0.0, attn_implementation="eager"),
        ("BartEncoderLayer", "BartDecoderLayer"), text, STATES),
    "whisper, sound to words": Case(
        transformer("WhisperForConditionalGeneration", "WhisperConfig", d_model=16, encoder_layers=2,
                    decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
                    encoder_ffn_dim=24,
                    decoder_ffn_dim=24, vocab_size=WORDS, num_mel_bins=8, max_source_positions=12,
                    max_target_positions=12, dropout=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                    decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None,
                    attn_implementation="eager"),
        ("WhisperEncoderLayer", "WhisperDecoderLayer"), sound, STATES),
    "clip, two towers": Case(
        towers("CLIPModel", "CLIPConfig"), ("CLIPEncoderLayer",), text_and_picture),
    "siglip, two towers": Case(
        towers("SiglipModel", "SiglipConfig"), ("SiglipEncoderLayer",), text_and_picture),
    "resnet, batch norm": Case(
        transformer("ResNetForImageClassification", "ResNetConfig", embedding_size=8, hidden_sizes=[8, 12],
                    depths=[1, 2], layer_type="basic", num_labels=4),
        ("ResNetBasicLayer",), labelled_picture, {"output_hidden_states": True}),
    "convnext": Case(
        transformer("ConvNextForImageClassification", "ConvNextConfig", hidden_sizes=[8, 12], depths=[1, 2],
                    num_stages=2, patch_size=4, num_labels=4, image_size=32),
        ("ConvNextLayer",), labelled_picture, {"output_hidden_states": True}),
    "swin": Case(
        transformer("SwinForImageClassification", "SwinConfig", image_size=32, patch_size=4, embed_dim=8,
                    depths=[1, 2], num_heads=[2, 2], window_size=4, num_labels=4, drop_path_rate=0.0),
        ("SwinLayer",), labelled_picture, STATES),
    "deberta-v2": Case(
        transformer("DebertaV2ForMaskedLM", "DebertaV2Config", **{k: v for k,
        v in TEXT.items() if k[0] != "a"},
                    relative_attention=True, pos_att_type=["p2c", "c2p"], hidden_dropout_prob=0.0,
                    attention_probs_dropout_prob=0.0),
        ("DebertaV2Layer",), text, STATES),
    "distilbert, no labels": Case(
        transformer("DistilBertModel", "DistilBertConfig", dim=16, n_layers=2, n_heads=2, hidden_dim=24,
                    vocab_size=WORDS, max_position_embeddings=32, dropout=0.0, attention_dropout=0.0,
                    attn_implementation="eager"),
        ("TransformerBlock",), no_labels, STATES),
    "bert, a pooler that no loss reaches": Case(
        transformer("BertModel", "BertConfig", **TEXT, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0),
        ("BertLayer",), no_labels, STATES, ("pooler_output",)),
    "wav2vec2, parametrized weights": Case(
        transformer("Wav2Vec2Model", "Wav2Vec2Config", **SIZES, conv_dim=(8, 8), conv_stride=(4, 2),
                    conv_kernel=(8, 4), num_feat_extract_layers=2, num_conv_pos_embeddings=4,
                    num_conv_pos_embedding_groups=2, hidden_dropout=0.0, attention_dropout=0.0, layerdrop=0.0,
                    feat_proj_dropout=0.0, activation_dropout=0.0, apply_spec_augment=False,
                    mask_time_prob=0.0,
                    attn_implementation="eager"),
        ("Wav2Vec2EncoderLayer",), wave, STATES),
    "peft, adapters of a frozen model": Case(adapted(), ("LlamaDecoderLayer",), text, STATES),
    "peft, adapters by magnitude and direction": Case(
        adapted(use_dora=True), ("LlamaDecoderLayer",), text, STATES),
    "diffusers, a U-Net": Case(
        diffuser("UNet2DConditionModel", sample_size=8, in_channels=4, out_channels=4,
        block_out_channels=(8, 16),
                 layers_per_block=1, cross_attention_dim=16, attention_head_dim=4, norm_num_groups=4,
                 down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
                 up_block_types=("UpBlock2D", "CrossAttnUpBlock2D")),
        ("CrossAttnDownBlock2D", "DownBlock2D", "UpBlock2D", "CrossAttnUpBlock2D"), latent_with_words),
    "diffusers, an autoencoder": Case(
        diffuser("AutoencoderKL", block_out_channels=(8, 8), layers_per_block=1, norm_num_groups=4,
                 latent_channels=2, sample_size=16, down_block_types=("DownEncoderBlock2D",) * 2,
                 up_block_types=("UpDecoderBlock2D",) * 2),
        ("DownEncoderBlock2D", "UpDecoderBlock2D"), image_sample),
    "diffusers, a diffusion transformer": Case(
        diffuser("DiTTransformer2DModel", num_attention_heads=2, attention_head_dim=8, in_channels=4,
                 out_channels=4, num_layers=2, sample_size=8, patch_size=2, norm_num_groups=4,
                 num_embeds_ada_norm=10),
        # The end of the model calls an embedding inside of its first block, so the block is no unit.
        ("Attention", "FeedForward"), latent_with_class),
}  # fmt: skip


# What is most unusual: experts, a state space, an encoder, adapters.
NOW = (
    "mixtral, idle experts",
    "mamba2, a state space",
    "bart, an encoder with a decoder",
    "peft, adapters by magnitude and direction",
)


def library() -> Any:
    """The transformers library, kept off the network and silent."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers

    transformers.logging.set_verbosity_error()
    return transformers


def made(case: Case) -> nn.Module:
    torch.manual_seed(7)
    return case.build(library())


def loss_of(output: Any, case: Case) -> Tensor:
    """The model's own loss, if it has one, and all other floating-point tensors that it returns."""
    used = {name: value for name, value in output.items() if name not in case.unused}
    floating = [t for t in tree_leaves(used) if isinstance(t, Tensor) and t.is_floating_point()]
    total = floating[0].new_zeros(())
    for tensor in floating:
        if tensor.grad_fn is not None:
            total = total + tensor.square().mean()
    return total


def average(model: nn.Module) -> None:
    """Give a plain model the mean gradients, summed in rank order. What no rank used keeps none."""
    for parameter in model.parameters():
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, parameter.grad)
        if parameter.requires_grad and any(gradient is not None for gradient in everyone):
            parts = [torch.zeros_like(parameter) if each is None else each for each in everyone]
            parameter.grad = sum(parts[1:], start=parts[0]) / len(parts)


def chosen(model: nn.Module, case: Case) -> Callable[[str, nn.Module], bool]:
    names = {type(module).__name__ for module in model.modules()}
    assert names.issuperset(case.units), f"{case.units} are not in {sorted(names)}"
    return lambda _, module: type(module).__name__ in case.units


Step = tuple[Tensor, dict[str, Tensor]]


def steps(model: nn.Module, case: Case, *, plain: bool) -> list[Step]:
    """Train a model: the loss of this rank and all values after each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    taken = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        torch.manual_seed(1000 * step + dist.get_rank())
        model.train()
        loss = loss_of(model(**case.inputs(generator), **case.options), case)
        loss.backward()
        if plain:
            average(model)
        optimizer.step()
        optimizer.zero_grad()
        values = {name: value.clone() for name, value in model.state_dict().items()}
        taken.append((loss.detach(), values))
    return taken


def study(name: str) -> dict[int, list[str]]:
    """What differs, by stage, in words."""
    from shardbook import shard

    # The libraries announce what they are going to rename, each at another place.
    warnings.simplefilter("ignore", FutureWarning)
    case = CASES[name]
    expected = steps(made(case), case, plain=True)
    found = {}
    for stage in STAGES:
        model = made(case)
        shard(model, stage=stage, units=chosen(model, case))
        found[stage] = list(differences(steps(model, case, plain=False), expected))
    return found


def differences(found: list[Step], expected: list[Step]) -> Iterator[str]:
    for step, ((loss, values), (same, right)) in enumerate(zip(found, expected, strict=True)):
        if not torch.equal(loss, same):
            yield f"step {step}: the loss is {loss}, not {same}"
        yield from (f"step {step}: {key}" for key in right if not torch.equal(values[key], right[key]))


def preload() -> None:
    """Import the libraries, and the part of them that each model needs."""
    for case in CASES.values():
        made(case)


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("name", rows(CASES, now=NOW))
def test_a_model_trains_like_the_plain_one(name: str) -> None:
    assert ranks.run(2, study, name) == [{stage: [] for stage in STAGES}] * 2
