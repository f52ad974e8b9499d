"""The checks of lab 8: stored bytes, sent bytes, and settings with which a model fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shardbook.labs.lessons.returned import number, whole_number
from shardbook.labs.notebook import check, expect
from shardbook.labs.words import tell
from shardbook.models.gpt import Config
from shardbook.planning.planner import Own, activations, layouts_of, own_bytes
from shardbook.zero.policy import Policy

__all__ = ["for_24_gb", "for_80_gb", "sent", "stored"]

# 6.7 billion parameters on 8 ranks.
CONFIG = Config(layers=32, width=4096, heads=32, context=2048, vocabulary=32_000)
RANKS, BATCH = 8, 8
GB = 10**9


@check
def stored(given: Callable[[int, int, int], float]) -> str:
    """Parameters and moving averages, and no gradients."""
    found = [number("stored", given(1000, 4, stage)) for stage in range(4)]
    expect(
        found[0] != 16_000,
        tell("16 bytes for each parameter include the gradients."),
        look=tell("Between steps there are none: `zero_grad` has freed them."),
    )
    looks = {
        0: tell("Stage 0 splits nothing: 4 + 8 bytes for each parameter."),
        1: tell("Stage 1 splits the 8 bytes of the moving averages, and no others."),
        2: tell("Stage 2 splits the gradients, too, and between steps there are none."),
        3: tell("Stage 3 splits all 12 bytes."),
    }
    for stage, right in enumerate((12_000, 6_000, 6_000, 3_000)):
        expect_bytes(found[stage], right, stage, looks[stage])
    expect(
        number("stored", given(1000, 8, 3)) == 1_500,
        tell("On 8 ranks at stage 3 a rank does not store a quarter, but an eighth."),
        look=tell("Divide by the argument `ranks`."),
    )
    return tell("On 64 ranks, stage 3 leaves 1.4 GB of 90 for 7.5 billion parameters.")


@check
def sent(given: Callable[[int, int, int], float]) -> str:
    """Two or three vectors, of which a rank keeps its own part."""
    found = [number("sent", given(1000, 4, stage)) for stage in range(4)]
    expect(
        found[0] != 8_000,
        tell("8,000 bytes are two whole vectors."),
        look=tell("A rank keeps its own part. Of 4 parts it sends 3."),
    )
    expect(
        found[0] != 2_000,
        tell("At stage 0 a rank sends three parts of four, and not one."),
        look=tell("The part that a rank sends is $(N_d-1)/N_d$, and not $1/N_d$."),
    )
    looks = {
        0: tell(
            "An all-reduce is a reduce-scatter and an all-gather, of 4 bytes each."
        ),
        1: tell("One reduce-scatter of gradients, and one all-gather of parameters."),
        2: tell("Stage 2 stores less than stage 1, but sends the same."),
        3: tell(
            "Stage 3 gathers the parameters twice, and reduces the gradients once."
        ),
    }
    for stage, right in enumerate((6_000, 6_000, 6_000, 9_000)):
        expect_bytes(found[stage], right, stage, looks[stage])
    less = number("sent", given(1000, 2, 0))
    expect(
        less == 4_000,
        tell(
            "On 2 ranks at stage 0, 1,000 parameters send 4,000 bytes, and not {found:g}.",
            found=less,
        ),
        look=tell("Does the function use the argument `ranks`?"),
    )
    return tell("Stage 3 sends half as much again as the other stages.")


@check
def for_80_gb(given: Callable[[], Mapping[str, Any]]) -> str:
    """The lowest stage that fits, without offload."""
    chosen = settings("for_80_gb", given())
    expect(
        not chosen["offload"],
        tell("This model fits without offload."),
        look=tell("With offload the optimizer runs on the host, and the GPU waits."),
    )
    made = expect_fit(chosen, room=72)
    fewest = planned({**chosen, "stage": 2})
    expect(
        made.sent <= fewest.sent,
        tell(
            "It fits, but it sends {sent:.1f} GB in a step, and another stage {fewest:.1f}.",
            sent=made.sent / GB,
            fewest=fewest.sent / GB,
        ),
        look=tell("Which is the lowest stage that fits?"),
    )
    return fit(made)


@check
def for_24_gb(given: Callable[[], Mapping[str, Any]]) -> str:
    """Everything at once."""
    return fit(expect_fit(settings("for_24_gb", given()), room=22))


def expect_bytes(found: float, right: float, stage: int, look: str) -> None:
    """Compare the bytes of 1,000 parameters on 4 ranks."""
    expect(
        found == right,
        tell(
            "At stage {stage}, 1,000 parameters on 4 ranks are {right:,} bytes on each, and not "
            "{found:,g}.",
            stage=stage,
            right=right,
            found=found,
        ),
        look=look,
    )


def expect_fit(chosen: dict[str, Any], room: int) -> Own:
    """Plan the reader's choice with the library's own planner."""
    made = planned(chosen)
    step = made.step
    assert step is not None
    assert made.activations is not None
    if not chosen["checkpointing"]:
        fewer = tell("Checkpointing keeps only the input of each block.")
    elif chosen["batch"] > BATCH:
        fewer = tell("Smaller micro-batches save fewer of them.")
    else:
        fewer = tell(
            "With micro-batches of 8 they stay. Which of the other bytes can go?"
        )
    looks = {
        made.activations: (tell("activations"), fewer),
        made.state: (
            tell("moving averages"),
            tell("Stages 1 to 3 split the moving averages over the ranks."),
        ),
        made.parameters: (
            tell("parameters"),
            tell("Only stage 3 splits the parameters on the device."),
        ),
        made.gradients: (
            tell("gradients"),
            tell("From stage 2 on a rank keeps only its part of the gradients."),
        ),
    }
    name, look = looks[max(looks)]
    expect(
        step <= room * GB,
        tell(
            "The plan takes {step:.1f} GB, and there are {room}. Most of it: {name}, {most:.1f} GB.",
            step=step / GB,
            room=room,
            name=name,
            most=max(looks) / GB,
        ),
        look=look,
    )
    return made


def planned(chosen: Mapping[str, Any]) -> Own:
    """The plan of one of the ranks."""
    policy = Policy(offload=chosen["offload"])
    extra = activations(CONFIG, chosen["batch"], chosen["checkpointing"])
    layouts = layouts_of(CONFIG, RANKS, policy)
    return own_bytes(layouts, chosen["stage"], "adamw", extra, policy)


def fit(made: Own) -> str:
    """What a plan that fits takes."""
    if made.host is None:
        return tell("The plan takes {step:.1f} GB.", step=(made.step or 0) / GB)
    return tell(
        "The plan takes {step:.1f} GB, and {host:.1f} GB for each rank on the host.",
        step=(made.step or 0) / GB,
        host=made.host / GB,
    )


def settings(name: str, found: object) -> dict[str, Any]:
    """Refuse what is no choice of settings."""
    wanted = ("stage", "batch", "checkpointing", "offload")
    expect(
        isinstance(found, Mapping) and set(found) == set(wanted),
        tell(
            "{name} should return a dictionary, and not {found!r}.",
            name=name,
            found=found,
        ),
        look=tell("Its keys are {keys}.", keys=", ".join(wanted)),
    )
    assert isinstance(found, Mapping)
    stage, batch = whole_number(found["stage"]), whole_number(found["batch"])
    expect(
        stage in range(4),
        tell("There is no stage {stage!r}.", stage=found["stage"]),
        look=tell("The stages are 0, 1, 2 and 3."),
    )
    expect(
        batch is not None,
        tell("A micro-batch has a whole number of sequences."),
        look=tell("It should have at least 8 sequences."),
    )
    expect(
        batch is not None and batch >= BATCH,
        tell("A micro-batch of {batch!r} is too small.", batch=batch),
        look=tell("It should have at least 8 sequences."),
    )
    for key in ("checkpointing", "offload"):
        expect(
            found[key] in (True, False),
            tell(
                "{key} is either True or False, and not {found!r}.",
                key=key,
                found=found[key],
            ),
            look=tell("Any other value would count as True or False without a word."),
        )
    switches = {key: bool(found[key]) for key in ("checkpointing", "offload")}
    return {"stage": stage, "batch": batch, **switches}
