"""The checks of lab 10: an error that is read, a mean over ranks, and a plain model on rank 0."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from shardbook.foundations.agreement import Disagreement
from shardbook.labs.lab_ranks import ranks
from shardbook.labs.lessons.returned import called, number, plain
from shardbook.labs.notebook import check, expect
from shardbook.labs.rank_process import device
from shardbook.labs.words import tell
from shardbook.models.gpt import GPT, Config, loss
from shardbook.zero.model import shard

__all__ = ["evaluate", "plain_on_rank_0", "reading"]


@check
def reading(given: Callable[[], Mapping[str, Any]], sentences: list[str]) -> str:
    """What the first half of the error says."""
    found = given()
    wanted = ("rank", "exchanges", "called")
    expect(
        isinstance(found, Mapping) and set(found) == set(wanted),
        tell(
            "{name} should return a dictionary, and not {found!r}.",
            name="reading",
            found=found,
        ),
        look=tell("Its keys are {keys}.", keys=", ".join(wanted)),
    )
    said = re.match(r"rank (\d+), after (\d+) exchanges", sentences[0])
    assert said is not None
    expect(
        number("reading", found["rank"]) == int(said[1]),
        tell("Rank {rank!r} is not the one that left the order.", rank=found["rank"]),
        look=tell("The other rank *went on, as agreed before*. Which one is left?"),
    )
    expect(
        number("reading", found["exchanges"]) == int(said[2]),
        tell("It is not {exchanges!r} exchanges.", exchanges=found["exchanges"]),
        look=tell(
            "*After* how many exchanges? *Exchange 1* is the first one of the pass alone."
        ),
    )
    expect(
        str(found["called"]).removesuffix("()") == "state_dict",
        tell("The rank did not call {called!r}.", called=found["called"]),
        look=tell(
            "The name of the method stands before the first *pass* in the error."
        ),
    )
    return tell("Rank 1 has called `state_dict` alone.")


@check
def evaluate(given: Any) -> str:
    """A mean over all positions, of which each rank has a part."""
    found = ranks(2, probe_evaluation, given, timeout=20)
    calls = [len(each[2]) for each in found]
    expect(
        calls == [1, 1],
        tell(
            "The ranks call the model {first} and {second} times.",
            first=calls[0],
            second=calls[1],
        ),
        look=tell("Each rank calls it once, with its part of the sequences."),
    )
    results = [number("evaluate", each[0]) for each in found]
    count = sum(each[2][0] for each in found)
    right, means = found[0][1]
    expect(
        abs(results[0] - results[1]) < 1e-6,
        tell("The ranks return different results: {found}.", found=results),
        look=tell("Each rank knows its own part only. Add up over the ranks."),
    )
    expect(
        abs(results[0] - means) > 1e-5,
        tell("This is the mean of the two ranks' means."),
        look=tell("One rank has two sequences and the other one: weigh them so."),
    )
    expect(
        abs(results[0] - right) < 1e-4,
        tell(
            "The mean loss is {right:.5f}, and not {found:.5f}.",
            right=right,
            found=results[0],
        ),
        look=tell("Divide the sum of all losses by the number of all positions."),
    )
    expect(
        count == 3,
        tell(
            "The ranks have evaluated {count} sequences together.",
            count=count,
        ),
        look=tell("There are three, and each of them belongs to one rank."),
    )
    return tell("All ranks have the same mean, and each has computed its part only.")


@check
def plain_on_rank_0(given: Any, config: Config) -> str:
    """The whole parameters, on rank 0 alone."""
    found = ranks(2, probe_plain, given, config, timeout=20)
    for _, error in found:
        expect(
            not error,
            tell("The ranks disagree: {error}", error=error),
            look=tell("All ranks call `state_dict`. Only what follows is for rank 0."),
        )
    (first, _), (second, _) = found
    looks = {
        "None": tell("Does the function end with `return`?"),
        "sharded": tell("It needs all ranks. Make a plain model with `GPT(config)`."),
        "other": tell("Load the whole parameters with `load_state_dict`."),
    }
    expect(
        first == "right",
        {
            "None": tell("On rank 0 the function returns None."),
            "sharded": tell("On rank 0 the function returns the sharded model itself."),
            "other": tell(
                "The model on rank 0 has other parameters than the sharded one."
            ),
        }.get(
            first,
            tell("On rank 0 the function returns no module, but a {kind}.", kind=first),
        ),
        look=looks.get(
            first, tell("Make a plain model with `GPT(config)`, and fill it.")
        ),
    )
    expect(
        second == "None",
        tell("Rank 1 returns a model, too."),
        look=tell("Only rank 0 is to have memory for the whole model."),
    )
    return tell("Rank 0 has a plain model, and the other ranks have none.")


def probe_evaluation(given: Any) -> tuple[Any, tuple[float, float], list[int]]:
    """Evaluate three sequences: the result, the right one, and the sequences of each call.

    The model is plain. With a sharded one, unequal numbers of calls would never return. The mean of
    the ranks' means stands beside the right result.
    """
    model, inputs, targets = example(Config(layers=1, width=32, heads=2, context=16))
    with torch.no_grad():
        each = [
            loss(model(inputs[at : at + 1]), targets[at : at + 1]).item()
            for at in range(3)
        ]
    seen: list[int] = []
    model.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
    found = plain(called("evaluate", given, model, inputs, targets))
    # Rank 0 may have sequences 0 and 2, or 0 and 1.
    means = [
        (each[0] + each[2]) / 4 + each[1] / 2,
        (each[0] + each[1]) / 4 + each[2] / 2,
    ]
    near = means[0]
    if isinstance(found, int | float):
        near = min(means, key=lambda mean: abs(mean - found))
    return found, (sum(each) / 3, near), seen


def probe_plain(given: Any, config: Config) -> tuple[str, str]:
    """Let the reader's function make a plain model: what it returns, and an error."""
    plain, inputs, targets = example(config)
    with torch.no_grad():
        right = plain(inputs)
    model = shard(plain)
    try:
        found = given(model)
        loss(model(inputs), targets).backward()
    except Disagreement as error:
        return "", str(error)
    if found is None:
        return "None", ""
    if found is model:
        return "sharded", ""
    if not isinstance(found, nn.Module):
        return type(found).__name__, ""
    with torch.no_grad():
        other = found.to(device())(inputs)
    same = (
        isinstance(other, torch.Tensor)
        and (other.shape, other.dtype) == (right.shape, right.dtype)
        and torch.allclose(other, right, atol=1e-5)
    )
    return ("right" if same else "other"), ""


def example(config: Config) -> tuple[GPT, torch.Tensor, torch.Tensor]:
    """A model and three sequences, the same on each rank."""
    model = GPT(config).to(device())
    # Larger weights make losses that are far from each other.
    with torch.no_grad():
        for each in model.parameters():
            each.mul_(8 if each.dim() > 1 else 1)
    text = torch.randint(256, (3, config.context + 1), device=device())
    return model, text[:, :-1], text[:, 1:]
