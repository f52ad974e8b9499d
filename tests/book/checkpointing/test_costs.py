"""What a layer saves and computes, against counts by hand and against PyTorch's formulas."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

from shardbook.checkpointing.budget import (
    Chain,
    FlopCounter,
    Layer,
    SavedBytes,
    attention_backward_flops,
    flops_of,
    measure,
    prices,
)
from shardbook.foundations.torch_private import since
from shardbook.models.gpt import GPT, Block, Config


def saved_by(function: nn.Module, x: Tensor) -> int:
    known = [*function.parameters(), *function.buffers()]
    with SavedBytes(known) as saved:
        y = function(x)
    assert y.requires_grad
    return saved.bytes


@pytest.mark.parametrize(
    ("function", "tensors"),
    [
        # A linear layer saves its input, a tanh its output, a leaky ReLU its input.
        (nn.Linear(16, 16), 1),
        (nn.Tanh(), 1),
        (nn.Sequential(nn.Linear(16, 16), nn.Tanh()), 2),
        # The output of the tanh is the input of the next layer: one tensor, not two.
        (nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16)), 2),
        # Views of one storage are one storage.
        (nn.Sequential(nn.Linear(16, 16), nn.Unflatten(1, (4, 4)), nn.Flatten(), nn.Tanh()), 2),
        (nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16)), 3),
        (nn.Dropout(0.0), 0),
    ],
)
def test_autograd_saves_what_each_layer_needs(function: nn.Module, tensors: int) -> None:
    x = torch.randn(4, 16, requires_grad=True)
    assert saved_by(function, x) == tensors * x.nbytes


def test_parameters_and_buffers_are_not_activations() -> None:
    x = torch.randn(4, 16, requires_grad=True)
    # A batch norm saves its input and the mean and the deviation of each channel.
    assert saved_by(nn.BatchNorm1d(16), x) == x.nbytes + 2 * 16 * 4


def test_counting_keeps_nothing_alive_and_leaves_no_circle() -> None:
    gc.collect()
    gc.disable()
    try:
        x = torch.randn(4, 16)
        with SavedBytes() as saved:
            y = torch.tanh(nn.Linear(16, 16)(x)).softmax(-1)
        assert saved.bytes > 2 * x.nbytes
        del x, y
        assert saved.bytes == 0
    finally:
        gc.enable()


def test_the_bytes_go_down_while_the_backward_pass_runs() -> None:
    x = torch.randn(4, 16, requires_grad=True)
    seen: list[int] = []
    with SavedBytes() as saved:
        middle = x.sin()
        middle.register_hook(lambda _: seen.append(saved.bytes))
        middle.tanh().sum().backward()
    # The tanh has given back its output when the gradient of its input is there.
    assert seen == [x.nbytes]


def test_counting_changes_no_gradient() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Softmax(-1)).double()
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)

    def counted(x: Tensor) -> Tensor:
        with SavedBytes():
            result: Tensor = model(x)
        return result

    assert torch.autograd.gradcheck(counted, (x,))
    assert torch.autograd.gradgradcheck(counted, (x,))


@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (3, 7)])
def test_attention_counts_as_it_does_on_a_gpu(queries: int, keys: int) -> None:
    q, k, v = torch.randn(2, 4, queries, 8), torch.randn(2, 4, keys, 8), torch.randn(2, 4, keys, 8)
    expected = sdpa_flop_count(q.shape, k.shape, v.shape)
    assert flops_of(F.scaled_dot_product_attention, q, k, v) == expected > 0


@pytest.mark.parametrize(("queries", "keys", "width"), [(5, 5, 8), (3, 7, 8)])
def test_the_backward_pass_of_attention_is_five_products(queries: int, keys: int, width: int) -> None:
    q = torch.randn(2, 4, queries, width, requires_grad=True)
    k, v = (torch.randn(2, 4, keys, width, requires_grad=True) for _ in range(2))
    y = F.scaled_dot_product_attention(q, k, v)
    # The scores again, and the gradients of the scores, of the values, of the queries and of the keys.
    products = [2 * 2 * 4 * queries * keys * width] * 5
    assert flops_of(y.backward, torch.ones_like(y)) == sum(products)


def test_the_backward_pass_of_attention_counts_as_it_does_on_a_gpu() -> None:
    shapes = (2, 4, 5, 6), (2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6)
    assert attention_backward_flops(*shapes) == sdpa_backward_flop_count(*shapes)


def test_a_gpt_is_measured_layer_by_layer() -> None:
    config = Config(layers=2, width=32, heads=4, context=16, vocabulary=64)
    model, tokens = GPT(config), torch.randint(0, 64, (3, 16))
    chain = measure(model, tokens)
    embedding, *blocks, head = chain.layers
    d, positions = config.width, 3 * 16
    stream = 4 * positions * d
    assert chain.input == tokens.nbytes
    assert [layer.output for layer in chain.layers] == [stream] * 3 + [4 * positions * 64]
    for block in blocks:
        linear = 2 * positions * 12 * d * d
        attention = sdpa_flop_count((3, 4, 16, 8), (3, 4, 16, 8), (3, 4, 16, 8))
        assert block.cost == linear + attention
        # The recomputation stops at the input of the last linear layer.
        assert block.replay == block.cost - 2 * positions * 4 * d * d
        # Two norms, 3 + 1 + 1 tensors of the attention, 4 + 4 of the layers after it, with the
        # means and deviations of the norms, and one number of the attention for each head.
        assert block.inner == 15 * stream + 4 * positions * (2 + 2 + config.heads)
        assert block.saves_input
        assert not any((block.saves_output, block.passes, block.overwrites))
    assert embedding.inner == 16 * 8  # the positions, `int64`
    assert embedding.saves_input
    assert head.cost == 2 * positions * d * 64
    assert head.replay == 0
    # All in all it is what the model saves in one go.
    with SavedBytes(model.parameters()) as saved:
        logits = model(tokens)
    total = chain.input + sum(layer.inner for layer in chain.layers) + 3 * stream
    assert saved.bytes == total
    assert logits.requires_grad


def test_layers_that_pass_on_or_write_over_their_input_are_told_apart() -> None:
    x = torch.randn(4, 16, requires_grad=True)
    chain = measure(
        [nn.Linear(16, 16), nn.ReLU(inplace=True), nn.Flatten(), nn.Identity(), nn.ReLU(), nn.Linear(16, 2)],
        x,
    )
    found = [(layer.passes, layer.overwrites) for layer in chain.layers]
    assert found == [
        (False, False),
        (True, True),
        (True, False),
        (True, False),
        (False, False),
        (False, False),
    ]
    _, in_place, flatten, *_ = chain.layers
    assert in_place.saves_input
    assert in_place.saves_output
    assert in_place.inner == 0
    assert flatten == Layer(0, None, 0, x.nbytes, False, False, passes=True)


def test_to_measure_draws_no_random_numbers() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    x = torch.ones(5, requires_grad=True)
    torch.manual_seed(1)
    measure([nn.Dropout(0.5)], x)
    assert torch.equal(torch.rand(3), expected)


def test_to_measure_moves_no_running_statistics() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Tanh())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    measure(model, torch.randn(4, 3))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(TypeError, match="a layer hands on a tuple"):
        measure([model, lambda x: (x, x), torch.sin], torch.randn(4, 3))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    # A buffer that nothing wrote to is not written to here either: a graph may hold it.
    y = torch.zeros(3, requires_grad=True) * model[0].running_var
    measure(model.eval(), torch.randn(4, 3))
    y.sum().backward()


def test_nothing_can_be_measured_where_no_gradients_are_recorded() -> None:
    for block in (torch.no_grad, torch.inference_mode):
        with block(), pytest.raises(RuntimeError, match="autograd saves nothing here; call measure outside"):
            measure([nn.Linear(2, 2)], torch.zeros(3, 2))


def test_only_a_chain_of_tensors_can_be_measured() -> None:
    with pytest.raises(TypeError, match="a layer hands on a tuple; only a chain in which one tensor"):
        measure([lambda x: (x, x), lambda pair: pair[0]], torch.zeros(2))


def test_seconds_can_stand_in_for_flops() -> None:
    layer = measure([nn.Linear(2, 2)], torch.zeros(3, 2)).layers[0]
    timed = Chain(24, (replace(layer, cost=0.5, replay=0.25),))
    assert timed.layers[0].cost == 0.5


def test_the_counter_sees_the_recomputation() -> None:
    x = torch.randn(2, 3, requires_grad=True)
    with FlopCounter() as counter:
        torch.mm(x, torch.zeros(3, 5)).sum().backward()
    assert counter.get_total_flops() == 2 * 2 * 2 * 3 * 5


def test_the_prices_of_a_block_add_up_to_the_block() -> None:
    block = Block(Config(width=32, heads=4, context=16))
    x = torch.randn(3, 16, 32, requires_grad=True)
    found = {price.op: price for price in prices(block, x)}
    # From PyTorch 2.15 on a linear layer gives its result another shape in an operation of its own.
    reshaped = found.pop("_unsafe_view", None)
    assert reshaped is None or (reshaped.calls == 4 and since("2.15"))
    assert {op: price.calls for op, price in found.items()} == {
        "native_layer_norm": 2,
        "addmm": 4,
        "_scaled_dot_product_flash_attention_for_cpu": 1,
        "add": 2,
        "gelu": 1,
    }
    assert sum(price.flops for price in found.values()) == flops_of(block, x)
    assert found["addmm"].bytes == (3 + 1 + 4 + 1) * x.nbytes
    assert found["gelu"].flops == 0


def test_what_is_written_or_looked_at_takes_no_new_bytes() -> None:
    x = torch.zeros(2, 2)
    found = prices(lambda x: (x + 1).mul_(2).view(4).t(), x)
    assert [(price.op, price.bytes) for price in found] == [("add", 16), ("mul_", 0)]
