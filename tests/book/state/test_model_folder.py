"""A sharded model as a safetensors folder of the plain model, out and in."""

from __future__ import annotations

import json
import re
import resource
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import init_device_mesh

import ranks
from shardbook import Policy, load_safetensors, save_safetensors, shard
from tiers import rows


class Odd(nn.Module):
    """Parameters of odd sizes and two dtypes, without dimensions, without elements, tied, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(7, 5), nn.Linear(5, 7)
        self.third = nn.Linear(7, 5, bias=False)
        self.third.weight = self.first.weight
        self.narrow = nn.Parameter(torch.randn(3, 3, dtype=torch.bfloat16), requires_grad=False)
        self.alone, self.none = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.empty(0, 3))
        self.norm = nn.BatchNorm1d(7)
        self.register_buffer("table", torch.randn(3))
        self.register_buffer("fleeting", torch.ones(2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.third(self.norm(self.second(self.first(x)))) * self.alone
        return result


def built(seed: int) -> Odd:
    torch.manual_seed(seed)
    model = Odd()
    # Buffers differ from model to model, too.
    model.norm.running_mean.uniform_()
    return model


def sharded(seed: int, stage: int, mesh_rows: int = 0, policy: Policy | None = None) -> nn.Module:
    mesh = None
    if mesh_rows:
        mesh = init_device_mesh("cpu", (mesh_rows, dist.get_world_size() // mesh_rows))
    return shard(built(seed), units=nn.Linear, stage=stage, mesh=mesh, policy=policy)


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def read(folder: Path) -> dict[str, Tensor]:
    """All files of a folder, through the library."""
    found: dict[str, Tensor] = {}
    for file in files(folder):
        held = safetensors.torch.load_file(file)
        assert not held.keys() & found.keys()
        found |= held
    return found


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(
        found[name].dtype == expected[name].dtype and torch.equal(found[name], expected[name])
        for name in expected
    )


def save(folder: Path, stage: int, mesh_rows: int, policy: Policy | None, options: Any) -> None:
    save_safetensors(sharded(1, stage, mesh_rows, policy), folder, **options)


def load(folder: Path, stage: int, mesh_rows: int = 0, options: Any = None) -> Any:
    model = sharded(2, stage, mesh_rows)
    # A pass before shows whether what was gathered then is gathered anew.
    model.eval()(torch.ones(2, 7))
    try:
        load_safetensors(model, folder, **(options or {}))
    except (ValueError, OSError) as error:
        return str(error)
    result = model(torch.ones(2, 7)).detach()
    return dict(model.state_dict()), result


def once() -> dict[str, Tensor]:
    """What is in the files: a tied weight under its first name."""
    return {name: value for name, value in built(1).state_dict().items() if name != "third.weight"}


KINDS = [(1, 3, 0), (2, 1, 0), (2, 0, 0), (3, 3, 0), (4, 3, 2), (4, 0, 2)]


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize(("count", "stage", "mesh_rows"), rows(KINDS, now=[(3, 3, 0), (4, 0, 2)]))
@pytest.mark.parametrize("shard_bytes", [10**9, 150])
def test_a_folder_holds_the_plain_model(
    tmp_path: Path, count: int, stage: int, mesh_rows: int, shard_bytes: int
) -> None:
    folder = tmp_path / "model"
    ranks.run(count, save, folder, stage, mesh_rows, None, {"shard_bytes": shard_bytes})
    assert same(read(folder), once())
    names = sorted(path.name for path in folder.iterdir())
    if shard_bytes == 10**9:
        assert names == ["model.safetensors"]
        # The library's own way into a plain model, tied names and all.
        plain = built(3)
        assert safetensors.torch.load_model(plain, folder / "model.safetensors") == (set(), [])
        assert same(dict(plain.state_dict()), dict(built(1).state_dict()))
    else:
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        assert index["weight_map"].keys() == once().keys()
        assert {*index["weight_map"].values()} == {name for name in names if name.endswith(".safetensors")}
        sizes = [[t.nbytes for t in safetensors.torch.load_file(f).values()] for f in files(folder)]
        assert all(sum(inside) <= 150 or len(inside) == 1 for inside in sizes)
        assert len(sizes) > 2
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    plain = built(1).eval()
    expected = plain(torch.ones(2, 7)).detach()
    for now, stage_now in ((2, 3), (3, 0)) if count == 3 else ((4, 2),):
        for state, result in ranks.run(now, load, folder, stage_now):
            assert same(state, dict(plain.state_dict()))
            assert torch.equal(result, expected)


def save_in_half(folder: Path) -> None:
    policy = Policy(param_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)
    save_safetensors(sharded(1, 3, policy=policy), folder / "masters")
    save_safetensors(sharded(1, 3), folder / "half", dtype=torch.bfloat16)


@pytest.mark.full
def test_masters_are_written_and_another_dtype_if_it_is_asked_for(tmp_path: Path) -> None:
    ranks.run(2, save_in_half, tmp_path)
    masters = read(tmp_path / "masters")
    # The policy has cast a buffer, and a file of the plain model has the dtype from before.
    expected = once()
    assert masters["table"].dtype == torch.float32
    assert torch.equal(masters.pop("table"), expected.pop("table").bfloat16().float())
    assert same(masters, expected)
    half = {n: v.bfloat16() if v.is_floating_point() else v for n, v in once().items()}
    assert same(read(tmp_path / "half"), half)
    (said,) = {*ranks.run(2, load, tmp_path / "half", 3)}
    assert re.search(r"is bfloat16 in .* and float32 in the model; cast=True converts it$", said)
    state, _ = ranks.run(2, load, tmp_path / "half", 3, 0, {"cast": True})[0]
    assert all(torch.equal(state[name], half[name].to(state[name].dtype)) for name in half)


def write(folder: Path, tensors: dict[str, Tensor]) -> None:
    folder.mkdir()
    safetensors.torch.save_file(tensors, folder / "model.safetensors")


def lacking(held: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in held.items() if not name.startswith("second")}


def with_more(held: dict[str, Tensor]) -> dict[str, Tensor]:
    return held | {f"layer.{number}.inv_freq": torch.ones(1) for number in range(5)}


def reshaped(held: dict[str, Tensor]) -> dict[str, Tensor]:
    return held | {"second.bias": torch.ones(8)}


def counted_otherwise(held: dict[str, Tensor]) -> dict[str, Tensor]:
    return held | {"norm.num_batches_tracked": torch.tensor(1.0)}


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lacking, r"is not of this model: it lacks second\.weight, second\.bias$"),
        (
            with_more,
            r"the model has no layer\.0\.inv_freq, layer\.1\.inv_freq, layer\.2\.inv_freq and 2 more$",
        ),
        (reshaped, r"^second\.bias has shape \(8,\) in .* and \(7,\) in the model$"),
        (counted_otherwise, r"^norm\.num_batches_tracked is float32 in .* and int64 in the model$"),
    ],
)
def test_what_does_not_fit_is_refused_on_every_rank(tmp_path: Path, change: Any, said: str) -> None:
    write(tmp_path / "model", change(once()))
    found = ranks.run(2, load, tmp_path / "model", 3)
    assert found[0] == found[1]
    assert re.search(said, found[0])


def rename(name: str) -> str | None:
    return None if name.startswith("norm") else f"base.{name}"


def load_some(folder: Path) -> Any:
    model = sharded(2, 3)
    load_safetensors(model, folder / "in", ignore=["*.inv_freq"], rename=rename)
    save_safetensors(model, folder / "out", rename=rename)
    with pytest.raises(ValueError, match="rename gives two tensors the name same"):
        save_safetensors(model, folder / "twice", rename=lambda name: "same")
    return dict(model.state_dict())


def test_names_are_ignored_and_changed_where_the_caller_says_so(tmp_path: Path) -> None:
    held = {f"base.{name}": value for name, value in once().items() if not name.startswith("norm")}
    # Of a tied weight that has two values, the last one counts, as for `load_state_dict`.
    held["base.third.weight"] = torch.full((5, 7), 3.0)
    write(tmp_path / "in", with_more(held))
    plain = built(2)
    state = {name.removeprefix("base."): value for name, value in held.items()}
    plain.load_state_dict(state, strict=False)
    for found in ranks.run(2, load_some, tmp_path):
        assert same(found, dict(plain.state_dict()))
    held["base.first.weight"] = held.pop("base.third.weight")
    assert same(read(tmp_path / "out"), held)


def shorten(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-5])


def be_a_pickle(folder: Path) -> None:
    torch.save({"a": torch.ones(2)}, folder / "model.safetensors")


def lead_elsewhere(folder: Path) -> None:
    index = {"weight_map": {"first.weight": "../model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def spoil_the_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text("{")


def lose_a_name(folder: Path) -> None:
    index = {"weight_map": {"first.bright": "model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def be_empty(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (shorten, r"model\.safetensors is no safetensors file: "),
        (be_a_pickle, r"model\.safetensors is no safetensors file: "),
        (lead_elsewhere, r"index\.json names '\.\./model\.safetensors', which is no file beside it$"),
        (spoil_the_index, r"index\.json is no index of safetensors: "),
        (lose_a_name, r"looks for first\.bright in model\.safetensors, which has no such name$"),
        (be_empty, r"holds neither model\.safetensors nor model\.safetensors\.index\.json; give a folder"),
    ],
)
def test_what_is_damaged_is_refused(tmp_path: Path, spoil: Any, said: str) -> None:
    from shardbook.state.folder_names import places_of

    write(tmp_path / "model", once())
    spoil(tmp_path / "model")
    with pytest.raises(ValueError, match=said):
        places_of(tmp_path / "model")


def save_where_it_cannot(folder: Path, what: str) -> tuple[str, list[str]]:
    model = sharded(1, 3)
    options: dict[str, Any] = {}
    if what == "full" and dist.get_rank() == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    if what == "taken" and dist.get_rank() == 0:
        folder.mkdir()
        (folder / "notes").touch()
    if what == "also":
        options["also"] = fail
    try:
        save_safetensors(model, folder, **options)
    except (OSError, RuntimeError) as error:
        dist.barrier()
        return str(error), sorted(path.name for path in folder.parent.iterdir())
    return "", []


def fail(folder: Path) -> None:
    raise KeyError("no configuration")


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize(
    ("what", "said", "left"),
    [
        ("full", "^rank 1: .*File too large", []),
        ("taken", "is there already; choose another name, or remove it$", ["model"]),
        ("also", "^KeyError: 'no configuration'$", []),
    ],
)
def test_nothing_stays_behind_where_a_folder_cannot_be_written(
    tmp_path: Path, what: str, said: str, left: list[str]
) -> None:
    found = ranks.run(2, save_where_it_cannot, tmp_path / "model", what)
    assert found[0] == found[1]
    assert re.search(said, found[0][0])
    assert found[0][1] == left
