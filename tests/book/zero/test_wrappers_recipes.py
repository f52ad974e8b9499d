"""The recipes of the page on moving for Accelerate and for the Trainer of the transformers library: they
train, save and stop as plain training does; and the defaults of both are refused."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import ranks
from book.toys import assert_equal, batch, chain, error

pytestmark = pytest.mark.full

PAGE = Path(__file__).parents[3] / "site" / "pages" / "moving.md"
STEPS = 4
TOKENS = 6


def as_torchrun() -> None:
    """What torchrun tells a process, and both libraries read."""
    rank, world_size = str(dist.get_rank()), str(dist.get_world_size())
    ours = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    # Nobody connects to it: the process group is there already.
    os.environ |= {**ours, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "OMP_NUM_THREADS": "1"}
    os.environ["HF_HUB_OFFLINE"] = "1"


def listing(word: str) -> str:
    """The one listing of the page that contains a word."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    (found,) = (block for block in blocks if word in block)
    return str(found)


def plain_training(model: nn.Module, optimizer: torch.optim.Optimizer, losses: Any, max_norm: float) -> None:
    """Steps of a plain model with the mean gradient of both ranks, clipped."""
    for both in losses:
        gradients = []
        for compute in both:
            optimizer.zero_grad()
            compute(model).backward()
            gradients.append([parameter.grad.clone() for parameter in model.parameters()])
        for parameter, first, second in zip(model.parameters(), *gradients, strict=True):
            parameter.grad = (first + second) / 2
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()


def under_accelerate() -> str:
    from accelerate import Accelerator

    from shardbook import clip_grad_norm_, shard

    as_torchrun()
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == 2
    rows = [batch(number, 0) for number in range(2 * STEPS)]
    loader = torch.utils.data.DataLoader(rows, batch_size=1, collate_fn=lambda items: items[0])
    with pytest.raises(RuntimeError) as caught:
        accelerator.prepare(shard(chain()), loader)
    model = shard(chain())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    names = {
        "accelerator": accelerator,
        "optimizer": optimizer,
        "batches": loader,
        "model": model,
        "loss": lambda output, targets: F.cross_entropy(output.flatten(0, 1), targets.flatten()),
        "clip_grad_norm_": clip_grad_norm_,
    }
    exec(listing("accelerator.prepare"), names)
    assert len(names["batches"]) == STEPS
    plain = chain()
    losses = [
        [lambda model, data=rows[2 * step + rank]: error(model, data) for rank in range(2)]
        for step in range(STEPS)
    ]
    plain_training(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2), losses, 1.0)
    found, expected = model.state_dict(), plain.state_dict()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name])
    return str(caught.value)


def test_accelerate_refuses_its_default_and_trains_by_the_recipe() -> None:
    for sentence in ranks.run(2, under_accelerate):
        assert sentence.startswith("0.weight is sharded, so DistributedDataParallel cannot")


def tiny_llama() -> Any:
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(7)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, vocab_size=40))


def under_trainer(folder: str) -> tuple[str, list[float]]:
    from transformers import Trainer, TrainingArguments
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    from shardbook import clip_grad_norm_, shard

    as_torchrun()
    warnings.simplefilter("ignore")

    torch.manual_seed(1)
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(40, (2 * 2 * STEPS, TOKENS))]
    options: Any = {
        "output_dir": folder,
        "per_device_train_batch_size": 2,
        "max_steps": STEPS,
        "learning_rate": 1e-2,
        "max_grad_norm": 0.5,
        "logging_steps": 1,
        "save_steps": STEPS,
        "save_only_model": True,
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "seed": 3,
        "data_seed": 3,
    }
    model = shard(tiny_llama(), units=LlamaDecoderLayer)
    with pytest.raises(RuntimeError) as caught:
        Trainer(model, TrainingArguments(**options), train_dataset=rows).train()
    names = {
        "Trainer": Trainer,
        "TrainingArguments": TrainingArguments,
        "LlamaDecoderLayer": LlamaDecoderLayer,
        "clip_grad_norm_": clip_grad_norm_,
        "shard": shard,
        "model": tiny_llama(),
        "options": {key: value for key, value in options.items() if key != "save_only_model"},
        "rows": rows,
    }
    exec(listing("class ShardedTrainer"), names)
    trainer, model = names["trainer"], names["model"]
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    norms = [entry["grad_norm"] for entry in trainer.state.log_history if "loss" in entry]
    # The same Trainer with the plain model under DDP, as it is by default.
    plain = Trainer(tiny_llama(), TrainingArguments(**options | {"save_strategy": "no"}), train_dataset=rows)
    plain.train()
    expected = [entry for entry in plain.state.log_history if "loss" in entry]
    assert losses == [entry["loss"] for entry in expected], (losses, expected)
    torch.testing.assert_close(norms, [entry["grad_norm"] for entry in expected])
    found = model.state_dict()
    for name, value in plain.model.state_dict().items():
        torch.testing.assert_close(found[name], value)
    if dist.get_rank() == 0:
        saved = tiny_llama().from_pretrained(f"{folder}/checkpoint-{STEPS}")
        assert_equal(dict(saved.state_dict()), dict(found))
    return str(caught.value), losses


def test_the_trainer_refuses_its_default_and_trains_by_the_recipe(tmp_path: Path) -> None:
    for sentence, losses in ranks.run(2, under_trainer, str(tmp_path), timeout=240):
        assert "embed_tokens.weight is sharded, so DistributedDataParallel cannot" in sentence
        assert len(losses) == STEPS
