"""The checks of lab 3: the three stages beside the library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from shardbook.labs.lab_ranks import ranks
from shardbook.labs.lessons import fifty_lines_compared as compared
from shardbook.labs.lessons.returned import called, expect_dtype, tensor
from shardbook.labs.notebook import NotYet, check, expect
from shardbook.labs.rank_process import Ended, Raised, RanksFailed
from shardbook.labs.words import tell

__all__ = ["flatten_and_cut", "gather_backward", "stage_3", "step_of_stage_1"]


@check
def flatten_and_cut(
    flatten: Callable[[Sequence[Tensor], int], Tensor],
    cut: Callable[[Tensor, int, int], Tensor],
) -> str:
    """Values in their order, zeros at the end, and parts with memory of their own."""
    five = [torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([5.0])]
    judge_vector(flatten, five, 3, [1, 2, 3, 4, 5, 0])
    judge_vector(flatten, five, 4, [1, 2, 3, 4, 5, 0, 0, 0])
    judge_vector(flatten, five, 5, [1, 2, 3, 4, 5])
    half = flatten([each.half() for each in five], 4)
    expect_dtype(
        "flatten",
        half,
        torch.float16,
        look=tell("`torch.cat` with zeros in FP32 turns everything into FP32."),
    )
    vector = torch.arange(6.0)
    for rank in range(3):
        part = tensor("cut", called("cut", cut, vector, rank, 3))
        judge_part(rank, part)
        expect_dtype("cut", part, vector.dtype)
        expect(
            part.untyped_storage().nbytes() == 8,
            tell("The part is a view of a longer vector, and keeps all of its memory."),
            look=tell("`clone()` gives it memory of its own."),
        )
    return tell("The parts of all ranks, one after the other, are the vector.")


def judge_vector(
    flatten: Any, tensors: list[Tensor], count: int, right: list[float]
) -> None:
    """Compare a vector with the right one."""
    found = called("flatten", flatten, tensors, count)
    expect(
        isinstance(found, Tensor) and found.ndim == 1,
        tell("flatten must return one tensor with one dimension."),
        look=tell(
            "Does each tensor become flat before `torch.cat`, and is there `return`?"
        ),
    )
    expect(
        len(found) % count == 0,
        tell(
            "flatten turns 5 values into {length}, which {count} ranks cannot share evenly.",
            length=len(found),
            count=count,
        ),
        look=tell(
            "`-len(vector) % ranks` zeros make its length a multiple of `ranks`."
        ),
    )
    expect(
        len(found) == len(right),
        tell(
            "For {count} ranks 5 values become {right}, and not {length}.",
            count=count,
            right=len(right),
            length=len(found),
        ),
        look=tell("Add as few zeros as possible, and none if the length fits already."),
    )
    expect(
        found.tolist() == right,
        tell(
            "The vector is {found}, and should be {right}.",
            found=found.tolist(),
            right=right,
        ),
        look=tell("The values come first, in their order, and the zeros come last."),
    )
    expect_dtype("flatten", found, tensors[0].dtype)


def judge_part(rank: int, part: Tensor) -> None:
    """Compare a part of the values 0 to 5 on 3 ranks with the right one."""
    right = [2.0 * rank, 2.0 * rank + 1]
    expect(
        part.tolist() != [rank, rank + 3.0],
        tell("Rank {rank} gets every third value.", rank=rank),
        look=tell(
            "An all-gather writes the parts one after the other. So each part is one piece."
        ),
    )
    expect(
        part.tolist() == right,
        tell(
            "Of the values 0 to 5, rank {rank} of 3 stores {right}, and not {found}.",
            rank=rank,
            right=right,
            found=part.tolist(),
        ),
        look=tell("Ranks are counted from 0, and `chunk` takes the number of pieces."),
    )


@check
def step_of_stage_1(given: Any) -> str:
    """The mean gradient of a part, a step, and the parts of all."""
    both = ranks(2, compared.one_step, given, timeout=SECONDS)
    mean = [-2.0 * each for each in (1, 2, 3, 4, 1, 2, 3, 4)]
    for rank, (first, second) in enumerate(both):
        judge_step(rank, first, mean)
        expect(
            second["parts"] == [2 * each for each in mean],
            tell("The second step is longer than the first, with the same gradients."),
            look=tell("Each step sets `part.grad` anew. Is the old one added to it?"),
        )
    compare(compared.trained_in_steps(given), 1)
    return equal(1)


def judge_step(rank: int, found: dict[str, Any], mean: list[float]) -> None:
    """Compare the parts and the layers after one step of SGD with those of the plain model."""
    expect(
        not found["dtypes"],
        tell(
            "Parts and layers were in FP32, and now there are values in {dtypes}.",
            dtypes=", ".join(found["dtypes"]),
        ),
        look=tell("New tensors get the dtype of the argument: `dtype=argument.dtype`."),
    )
    expect(
        any(found["parts"]),
        tell("The parts have not changed."),
        look=tell(
            "The optimizer needs `part.grad` for each part, and then `optimizer.step()`."
        ),
    )
    expect(
        found["parts"] != [2 * each for each in mean],
        tell("The step is twice as long as that of the plain model."),
        look=tell("A reduce-scatter gives the sum over the ranks. The mean is wanted."),
    )
    expect(
        found["parts"] == mean,
        tell("The parts were not trained with the mean gradient of the two ranks."),
        look=tell(
            "The gradients of all ranks are added by `dist.reduce_scatter`, in the order of "
            "the vector, and each rank gets its own part of the sum."
        ),
    )
    expect(
        any(found["layers"]),
        tell("The parts are new, but the layers still have their old values."),
        look=tell(
            "Gather the parts after the step, and copy each view into `parameter.data`."
        ),
    )
    expect(
        found["layers"] == mean,
        tell("On rank {rank} a layer has other values than the parts.", rank=rank),
        look=tell(
            "Gather after the optimizer's step, from all ranks, and copy all views of the vector."
        ),
    )


@check
def gather_backward(Gather: Any) -> str:
    """The reduce-scatter, the mean, and the memory."""
    both = ranks(2, compared.after_backward, Gather, timeout=SECONDS)
    for rank, found in enumerate(both):
        whole = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
        expect(
            found["whole"] == whole,
            tell(
                "The forward pass gives {found}, and not all parts.",
                found=found["whole"],
            ),
            look=tell(
                "The forward pass was given: `gather(part, full)`, and `full.data`."
            ),
        )
        right = [2 * each for each in whole[3 * rank : 3 * rank + 3]]
        gradient = found["gradient"]
        expect(
            gradient is not None,
            tell("The part has no gradient."),
            look=tell(
                "`backward` returns the gradients in the order of the inputs: `part`, `full`."
            ),
        )
        expect(
            gradient != [2 * each for each in right],
            tell("The gradient is the sum over the ranks."),
            look=tell(
                "The loss is the mean over the ranks. Divide by `dist.get_world_size()`."
            ),
        )
        expect(
            gradient == right,
            tell(
                "On rank {rank} the gradient of the part is {found}, and should be {right}.",
                rank=rank,
                found=gradient,
                right=right,
            ),
            look=tell(
                "Rank 0 found 1 to 6 as the gradient of the vector, and rank 1 found 3, 6, 9, 12, 15, "
                "18. Each rank needs its own part of the mean."
            ),
        )
        expect(
            found["stored"] == 0,
            tell("After the backward pass the whole vector is still stored."),
            look=tell(
                "`forward` has kept it as `context.full`, so `backward` can free it."
            ),
        )
    compare(compared.gathered(Gather), 2)
    return equal(2)


@check
def stage_3(Stage3: Any) -> str:
    """A layer that keeps nothing between its uses, and finds its values again."""
    try:
        found = ranks(2, compared.after_a_step, Stage3, timeout=SECONDS)[0]
    except RanksFailed as error:
        raise freed_too_early(error) from None
    expect(
        "returned" not in found,
        tell("The forward pass returns {kind}.", kind=found.get("returned", "")),
        look=tell("Return the output `y` of the layer."),
    )
    expect(
        found["right"],
        tell("The output is not that of the layer."),
        look=tell(
            "Compute before the vector is freed, with views of what `Gather` has returned."
        ),
    )
    expect(
        not found["changed"],
        tell("{name} has changed an argument of its caller.", name="stage_3"),
        look=tell("The caller still needs it. Write into memory of your own."),
    )
    expect(
        found["gradient"],
        tell("The part gets no gradient."),
        look=tell(
            "Autograd records only `Gather.apply(self.part, full)`, and no other gather."
        ),
    )
    # The layer has 16,384 bytes. The gradient of the part has 8,192, and outputs have 256.
    expect(
        found["kept after forward"] < 8192,
        tell("After the forward pass the whole layer is still stored."),
        look=tell(
            "`free` shrinks the storage under the vector, whoever still refers to it."
        ),
    )
    expect(
        found["input"],
        tell("In the backward pass the layer computed with wrong values."),
        look=tell("Gather into the same vector, since autograd has saved views of it."),
    )
    expect(
        found["kept after backward"] < 16384,
        tell("After the backward pass the whole layer is stored again."),
        look=tell(
            "It is gathered before the backward pass, and `Gather.backward` frees it."
        ),
    )
    compare(compared.trained_in_layers(Stage3), 3)
    return equal(3)


def freed_too_early(error: RanksFailed) -> Exception:
    """The sentence for a read of freed memory; any other error stays what it is."""
    first = error.outcomes[0].failure
    refused = isinstance(first, Raised) and any(
        said in first.text for said in ("not allocated", "storage of size 0")
    )
    if refused or (isinstance(first, Ended) and first.code < 0):
        return NotYet(
            tell("The layer was used while its vector had no memory."),
            tell(
                "Free it after the layer has computed. Its backward pass reads it once more, so a "
                "hook of the output must call `gather(self.part, full)` first."
            ),
        )
    return error


# A rank that waits for another one that has returned never returns. Each of these runs takes
# a few seconds.
SECONDS = 30.0
# PyTorch may add the products of a matrix in another order if its memory begins elsewhere.
TOLERANCE = 1e-5


def compare(training: compared.Training, stage: int) -> None:
    """Train with the reader's code, with the library, and without sharding."""
    plain, library = ranks(2, compared.differences, training, stage, timeout=SECONDS)[0]
    expect(
        max(plain, library) < TOLERANCE,
        tell(
            "After {steps} steps a parameter differs by {plain:g} from the plain model, and by "
            "{library:g} from the library.",
            steps=compared.STEPS,
            plain=plain,
            library=library,
        ),
        look=tell(
            "One step is right. What stays from one step to the next, or from layer to layer?"
        ),
    )


def equal(stage: int) -> str:
    """The sentence at the end of each stage."""
    return tell(
        "Your stage {stage} equals the library: after {steps} steps all parameters are those of "
        "shard(model, stage={stage}), and of the plain model.",
        stage=stage,
        steps=compared.STEPS,
    )
