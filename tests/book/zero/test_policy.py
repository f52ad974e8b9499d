"""Master weights: 16-bit training equals the same done by hand, and moves half the bytes."""

from __future__ import annotations

import copy
import pickle
from contextlib import nullcontext
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import ranks
from book.masters import assert_masters_train_alike, low_copy
from book.reference import STAGES, compared_bytes, second_step, storages
from book.toys import assert_equal, batch, chain, error, optimizer_for
from shardbook.planning.forecast import Meter
from shardbook.training.whole import full_precision
from shardbook.zero.policy import Policy
from shardbook.zero.scheduler import scheduler_of
from shardbook.zero.unit import State
from tiers import rows

BF16 = torch.bfloat16


def each_stage_trains_like_masters(options: dict[str, Any], reference: dict[str, Any]) -> None:
    from shardbook import shard

    dtype = options["param_dtype"]
    low = partial(low_copy, dtype=dtype, norms=dtype.itemsize < 4 and "fp32_modules" not in options)
    models = [shard(chain(seed=dist.get_rank()), stage=stage, policy=Policy(**options)) for stage in STAGES]
    assert_masters_train_alike(chain(), models, low, wire=options.get("reduce_dtype"), **reference)


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("world_size", rows([2, 3], now=[2]))
@pytest.mark.parametrize(
    ("options", "reference"),
    [
        ({"param_dtype": BF16}, {}),
        ({"param_dtype": BF16}, {"optimizer": "sgd", "micro": 3}),
        ({"param_dtype": BF16, "reduce_dtype": torch.float32}, {"optimizer": "sgd", "micro": 2}),
        ({"param_dtype": torch.float16, "fp32_modules": (), "fp32_norms": ()}, {"micro": 2, "once": False}),
        ({"param_dtype": torch.float64, "reduce_dtype": BF16}, {"optimizer": "sgd"}),
    ],
    ids=["bf16", "bf16-sum", "fp32-wire", "fp16-all", "fp64"],
)
def test_every_stage_trains_like_masters_by_hand(
    world_size: int, options: dict[str, Any], reference: dict[str, Any]
) -> None:
    ranks.run(world_size, each_stage_trains_like_masters, options, reference)


# --- what is sent ---


def sent_by(options: dict[str, Any]) -> list[tuple[dict[str, int], dict[str, int]]]:
    """What a step sends in each stage, and the bytes of the padded vectors: those that are computed with, and
    those that travel as gradients.
    """
    from shardbook import shard

    policy, found = Policy(**options), []
    for stage in STAGES:
        model = shard(chain(), stage=stage, policy=policy)
        book = second_step(model, "adamw")
        layouts = [flat.layout for unit in scheduler_of(model).units for flat in unit.flats]
        computed = sum(layout.padded * layout.computes_in.itemsize for layout in layouts)
        travel = sum(layout.padded * policy.sends_in(layout.computes_in).itemsize for layout in layouts)
        assert book.moved == {}
        sent = book.sent
        assert sent.pop("all-reduce") == compared_bytes(model)
        found.append((sent, {"computed": computed, "travel": travel}))
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("wire", [None, torch.float32])
def test_gathers_and_gradients_send_the_bytes_of_their_own_formats(wire: torch.dtype | None) -> None:
    for found in ranks.run(3, sent_by, {"param_dtype": BF16, "reduce_dtype": wire}):
        for stage, (sent, vectors) in zip(STAGES, found, strict=True):
            once = {kind: nbytes * 2 // 3 for kind, nbytes in vectors.items()}
            # In stage 0 the mean is gathered, in the format in which it travels.
            gathers = (once["travel"], once["computed"], once["computed"], 2 * once["computed"])[stage]
            assert sent == {"reduce-scatter": once["travel"], "all-gather": gathers}


def halved() -> tuple[dict[str, int], dict[str, int]]:
    from shardbook import shard
    from shardbook.foundations.collectives import ledger

    books = []
    for policy in (Policy(), Policy(param_dtype=BF16)):
        model = shard(aligned(), policy=policy)
        with ledger() as book:
            model(torch.ones(2, 64)).sum().backward()
        sent = book.sent
        # One number for each parameter tensor has no format of its own.
        assert sent.pop("all-reduce") == compared_bytes(model)
        books.append(sent)
    return books[0], books[1]


def aligned() -> nn.Module:
    """On two ranks nothing of it is padded, in no format."""
    return nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))


def test_in_16_bits_a_step_sends_half_the_bytes() -> None:
    for full, half in ranks.run(2, halved):
        assert half == {name: nbytes // 2 for name, nbytes in full.items()}


def bytes_of_a_gather() -> dict[tuple[int, bool], tuple[int, int, int, int]]:
    """For a unit of each stage, without and with offload: the bytes that come on top while it is gathered at
    most, while it is whole, and afterwards; and those of its vector.
    """
    from shardbook import shard

    found = {}
    for stage in STAGES:
        for offload in (False, True):
            model = shard(aligned(), stage=stage, policy=Policy(param_dtype=BF16, offload=offload))
            unit = next(iter(scheduler_of(model).units))
            with Meter() as meter:
                before = meter.now()
                unit.wait()
                whole = meter.settled() - before
                unit.free()
            found[stage, offload] = meter.peak - before, whole, meter.now() - before, unit.nbytes
    return found


def test_the_16_bit_part_is_cast_into_its_place_and_takes_no_memory_of_its_own() -> None:
    for found in ranks.run(2, bytes_of_a_gather):
        for (stage, offload), (peak, whole, after, vector) in found.items():
            assert after == 0
            assert whole == (vector if stage == 3 else 0)
            # From the host this rank's part comes by way of a copy, which is dropped at once.
            staged = vector // (2 if stage else 1) if offload else 0
            assert peak == whole + staged


def bytes_of_a_cut() -> dict[tuple[int, str], tuple[int, int]]:
    """The bytes for each parameter of one FP32 matrix: the most while it is sharded, and afterwards."""
    from shardbook import shard

    policies = {"none": Policy(), "bf16": Policy(param_dtype=BF16), "offload": Policy(offload=True)}
    found = {}
    for stage, (name, policy) in product(STAGES, policies.items()):
        model = nn.Linear(64, 64, bias=False)
        with Meter() as meter:
            before = meter.now() - model.weight.nbytes
            shard(model, stage=stage, policy=policy, synchronize=False)
            after = meter.settled()
        # Of the messages in which the ranks agree, a thread of the backend may hold one a moment longer.
        most, left = (round((nbytes - before) / 64**2) for nbytes in (meter.peak, after))
        found[stage, name] = most, left
    return found


def test_in_stage_3_a_unit_is_cut_with_no_more_memory_than_without_a_policy() -> None:
    for found in ranks.run(2, bytes_of_a_cut):
        most, left = ({way: nbytes[i] for way, nbytes in found.items()} for i in range(2))
        assert {name: most[3, name] for name in ("none", "bf16", "offload")} == dict.fromkeys(
            ("none", "bf16", "offload"), 10
        )
        # One of the two forms comes on top, for both ranks or for one.
        assert [most[stage, "bf16"] - most[stage, "none"] for stage in (0, 1, 2)] == [2, 2, 2]
        assert [most[stage, "offload"] - most[stage, "none"] for stage in (0, 1, 2)] == [4, 2, 2]
        # The masters are all that is left beside the form that is computed with, which stage 3 frees.
        assert [left[stage, "none"] for stage in STAGES] == [4, 4, 4, 2]
        assert [left[stage, "bf16"] for stage in STAGES] == [6, 4, 4, 2]
        assert [left[stage, "offload"] for stage in STAGES] == [8, 6, 6, 2]


def bytes_in_full_precision() -> dict[tuple[int, bool], list[int]]:
    """What comes on top in the block between uses and is left after it; the bytes of the masters."""
    from shardbook import shard

    found = {}
    for stage, offload in product(STAGES, (False, True)):
        model = shard(aligned(), stage=stage, policy=Policy(param_dtype=BF16, offload=offload))
        with Meter() as meter:
            before = meter.now()
            with full_precision(model):
                inside = meter.settled() - before
            after = meter.settled() - before
        flats = [flat for unit in scheduler_of(model).units for flat in unit.flats if flat.narrowed]
        found[stage, offload] = [inside, after, sum(4 * flat.layout.padded for flat in flats)]
    return found


def test_full_precision_takes_a_second_whole_vector_in_stages_1_and_2() -> None:
    for found in ranks.run(2, bytes_in_full_precision):
        for (stage, offload), (inside, after, masters) in found.items():
            second = stage in (1, 2) or (stage == 0 and offload)
            assert (inside, after) == (masters if second else 0, 0), (stage, offload)


# --- the settings ---


@pytest.mark.parametrize("name", ["param_dtype", "reduce_dtype", "buffer_dtype", "output_dtype"])
def test_only_floating_point_dtypes_are_taken(name: str) -> None:
    for wrong in (torch.int32, "bfloat16", torch.float8_e4m3fn):
        with pytest.raises(TypeError, match=f"{name}=.* cannot hold .*; choose a floating-point dtype"):
            Policy(**{name: wrong})


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("fp32_modules", nn.LayerNorm),
        ("fp32_modules", [nn.LayerNorm]),
        ("fp32_modules", (nn.LayerNorm(3),)),
        ("fp32_norms", F.layer_norm),
        ("fp32_norms", (3,)),
        ("fp32_norms", (nn.LayerNorm,)),
        ("fp32_losses", ["cross_entropy"]),
    ],
)
def test_the_tables_are_tuples_of_classes_and_functions(name: str, wrong: Any) -> None:
    what = "classes" if name == "fp32_modules" else "functions"
    said = rf"^{name}=.* is not a tuple of {what}; write {name}=\(first, second\), or \(\) for none$"
    with pytest.raises(TypeError, match=said):
        Policy(**{name: wrong})


@pytest.mark.parametrize(("name", "wrong"), [("offload", "cpu"), ("cast_inputs", "no"), ("offload", 1)])
def test_a_switch_is_on_or_off(name: str, wrong: Any) -> None:
    with pytest.raises(TypeError, match=rf"^{name}={wrong!r} must be True or False$"):
        Policy(**{name: wrong})


def test_a_policy_can_be_compared_and_sent() -> None:
    policy = Policy(param_dtype=BF16, fp32_norms=(F.layer_norm, torch.layer_norm), offload=True)
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert hash(policy) == hash(copy.copy(policy))
    # No address, which would differ from rank to rank.
    assert repr(policy) == (
        "Policy(param_dtype=torch.bfloat16, fp32_norms=(layer_norm, _VariableFunctionsClass.layer_norm), "
        "offload=True)"
    )


def different_policies() -> str:
    from shardbook import shard

    policy = Policy(param_dtype=BF16, offload=dist.get_rank() == 1)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        shard(chain(), policy=policy)
    return str(caught.value)


def test_ranks_with_different_policies_are_told() -> None:
    for said in ranks.run(2, different_policies):
        assert "rank 1 shards with stage=3, Policy(param_dtype=torch.bfloat16, offload=True), " in said
        assert "rank 0 with stage=3, Policy(param_dtype=torch.bfloat16), " in said


# --- the masters ---


def masters_are_saved_and_loaded() -> None:
    from shardbook import shard

    policy = Policy(param_dtype=BF16)
    for stage in STAGES:
        plain = chain()
        plain[4].weight = plain[0].weight
        model = shard(copy.deepcopy(plain), stage=stage, policy=policy)
        state = model.state_dict()
        assert_equal(dict(state), dict(plain.state_dict()))
        assert state["4.weight"].data_ptr() == state["0.weight"].data_ptr()
        other = chain(seed=5)
        other[4].weight = other[0].weight
        model.load_state_dict(other.state_dict())
        assert_equal(dict(model.state_dict()), dict(other.state_dict()))
        # The loaded values are those that are computed with.
        low = low_copy(other, BF16)
        assert error(model, batch(0, 0)).item() == error(low, batch(0, 0)).item()
        for unit in scheduler_of(model).units:
            assert not unit.precise
            assert all(flat.full.dtype == flat.layout.computes_in for flat in unit.flats)


def changes_by_hand_are_seen() -> None:
    """Also those of which PyTorch's counter of writes learns nothing."""
    from shardbook import shard

    for stage in STAGES:
        plain, model = chain(), shard(chain(), stage=stage, policy=Policy(param_dtype=BF16))
        for number in range(3):
            found = error(model, batch(0, number)).item()
            assert found == error(low_copy(plain, BF16), batch(0, number)).item()
            with torch.no_grad():
                for each in (plain, model):
                    for parameter in each.parameters():
                        (parameter.data if number else parameter).mul_(1.25)


def evaluates_in_full_precision() -> None:
    from shardbook import no_sync, shard
    from shardbook.foundations.collectives import ledger

    for stage in STAGES:
        plain, model = chain(), shard(chain(), stage=stage, policy=Policy(param_dtype=BF16))
        optimizer = optimizer_for("sgd", model.parameters())
        data = batch(0, 0)
        with full_precision(model), ledger() as book:
            for _ in range(2):
                loss = error(model, data)
                assert loss.item() == error(plain, data).item()
                assert not loss.requires_grad
            assert_equal(dict(model.state_dict()), dict(plain.state_dict()))
            assert error(model, data).item() == error(plain, data).item()
        if stage == 0:
            assert book.sent == {}
        # The block leaves no trace, and training goes on in 16 bits.
        low = low_copy(plain, BF16)
        assert error(model, data).item() == error(low, data).item()
        # Between two micro-batches a unit need not gather again, but here it has to.
        with no_sync(model):
            error(model, data).backward()
        with full_precision(model), torch.enable_grad():
            loss = error(model, data)
            assert loss.item() == error(plain, data).item()
            # Gradients of the masters would reach nobody, so nothing is recorded for them.
            masters = [flat.whole for unit in scheduler_of(model).units for flat in unit.narrowed]
            assert not any(one.requires_grad for whole in masters for one in whole)
        error(model, batch(dist.get_rank(), 1)).backward()
        optimizer.step()
        seen = model[1].register_forward_pre_hook(partial(enter_in_the_middle, model))
        with pytest.raises(RuntimeError, match="is in use; enter full_precision"):
            model(data[0])
        seen.remove()
        error(model, data)
    with pytest.raises(ValueError, match="is not sharded"), full_precision(chain()):
        pass


class Fine(nn.Module):
    """Its result depends on digits of the input and of both parameters that BF16 does not hold.

    And on an attribute of a parameter.
    """

    def __init__(self) -> None:
        super().__init__()
        self.trained: Any = nn.Parameter(torch.tensor([1001.0]))
        self.trained.zero = 1000
        self.frozen = nn.Parameter(torch.tensor([1003.0]), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.stack([self.trained - self.trained.zero, self.frozen - 1000, x - 1000])
        return y


def full_precision_reaches_each_vector_and_the_inputs() -> None:
    """A unit with a trainable and a frozen vector, called with FP32 inputs, in nested blocks."""
    from shardbook import shard

    rounded, exact = [0.0, 4.0, 8.0], [1.0, 3.0, 7.0]
    x = torch.tensor([1007.0])
    for stage in STAGES:
        model = shard(Fine(), stage=stage, policy=Policy(param_dtype=BF16))

        def values(model: nn.Module = model) -> list[float]:
            result: Tensor = model(x)
            return result.flatten().tolist()

        assert values() == rounded, stage
        with full_precision(model):
            assert values() == exact, stage
            with full_precision(model):
                assert values() == exact, stage
            # The inner block gives back what it has found.
            assert values() == exact, stage
        assert values() == rounded, stage


def a_model_is_evaluated_in_inference_mode() -> None:
    """The parameters that full precision makes are then tensors whose writes PyTorch does not count."""
    from shardbook import shard

    for stage in STAGES:
        plain, model = chain(), shard(chain(), stage=stage, policy=Policy(param_dtype=BF16))
        data = batch(0, 0)
        with torch.inference_mode():
            with full_precision(model):
                assert error(model, data).item() == error(plain, data).item(), stage
            low = low_copy(plain, BF16)
            assert error(model, data).item() == error(low, data).item(), stage
        # Training goes on.
        error(model, batch(dist.get_rank(), 1)).backward()
        model.zero_grad()


def a_backward_pass_belongs_to_the_side_of_its_forward_pass() -> None:
    from shardbook import shard

    def refused(side: str) -> Any:
        # Without a dtype to compute in, the block changes no format.
        return pytest.raises(RuntimeError, match=f"{side} of full_precision") if policy else nullcontext()

    for stage, policy in product(STAGES, (None, Policy(param_dtype=BF16))):
        model: Any = shard(chain(), stage=stage, policy=policy)
        tokens, _ = batch(0, 0)
        x = torch.ones(1, 8, requires_grad=True)
        with full_precision(model), torch.enable_grad():
            model[1](x).sum().backward()
            later = model[1](x).sum()
        assert x.grad is not None
        with refused("inside"):
            later.backward()
        before = model(tokens).sum()
        with full_precision(model), refused("outside"):
            before.backward()
        model(tokens).sum().backward()


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def an_interrupt_within_the_block_or_before_it() -> None:
    """It runs no hooks. So a unit may still be whole, or be on its way because it was gathered ahead."""
    from shardbook import shard

    data = batch(0, 0)
    for stage in STAGES:
        plain, model = chain(), shard(chain(), stage=stage, policy=Policy(param_dtype=BF16))
        own, low = list(model.parameters()), low_copy(plain, BF16)
        for register in (model[1].register_forward_pre_hook, model[0].register_forward_hook):
            assert error(model, data).item() == error(low, data).item(), stage
            handle = register(interrupt)
            with pytest.raises(KeyboardInterrupt), full_precision(model):
                model(data[0])
            shown = list(model.parameters())
            assert all(one is other for one, other in zip(shown, own, strict=True)), stage
            handle.remove()
        assert error(model, data).item() == error(low, data).item(), stage
        handle = model[0].register_forward_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            model(data[0])
        handle.remove()
        # What was on its way in 16 bits takes no room beside the whole in FP32.
        ahead = [unit for unit in scheduler_of(model).units if unit.state is State.GATHERING]
        narrow = [flat.full for unit in ahead for flat in unit.flats]
        assert ahead
        with full_precision(model):
            assert stage < 3 or not storages(narrow)
            assert error(model, data).item() == error(plain, data).item(), stage
        assert error(model, data).item() == error(low, data).item(), stage


def enter_in_the_middle(model: nn.Module, *_: Any) -> None:
    with full_precision(model):
        pass


CASES = [
    masters_are_saved_and_loaded,
    changes_by_hand_are_seen,
    evaluates_in_full_precision,
    full_precision_reaches_each_vector_and_the_inputs,
    a_model_is_evaluated_in_inference_mode,
    a_backward_pass_belongs_to_the_side_of_its_forward_pass,
    an_interrupt_within_the_block_or_before_it,
]


def each_case() -> None:
    for case in CASES:
        case()


@pytest.mark.nightly
def test_masters_are_what_is_saved_changed_and_evaluated() -> None:
    ranks.run(2, each_case, timeout=120)
