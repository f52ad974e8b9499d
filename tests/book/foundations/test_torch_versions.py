"""The library runs on the versions of PyTorch that it names, and says so on others."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch.distributed as dist
import torch.nn.functional as F
from packaging.specifiers import SpecifierSet

from shardbook.foundations import torch_private as versions

ROOT = Path(__file__).parents[3]
BOOK = ROOT / "src" / "shardbook"


def test_tested_versions_are_let_in_without_a_word() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for version in (versions.OLDEST, f"{versions.OLDEST}.1+cu130", f"{versions.NEWEST}.0"):
            versions.check_version(version)


def test_an_older_version_is_refused_in_one_sentence() -> None:
    with pytest.raises(ImportError, match=r"needs PyTorch 2\.11 or newer, and this is 2\.10\.0\+cu128: pip"):
        versions.check_version("2.10.0+cu128")


@pytest.mark.parametrize("version", ["2.16.0", "2.16.0.dev20261120+cu130", "2.16.0a0+git1234", "3.0.0"])
def test_a_newer_version_is_let_in_with_one_warning(version: str) -> None:
    with pytest.warns(
        UserWarning, match=r"PyTorch 2\.11 to 2\.15, and this is " + re.escape(version)
    ) as said:
        versions.check_version(version)
    assert len(said) == 1
    assert (ROOT / str(said[0].message).split("; ")[1].split()[0]).is_file()


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize(
    ("version", "code", "said"), [("2.16.0", 0, "UserWarning: "), ("2.10.2", 1, "ImportError: ")]
)
def test_the_import_asks(version: str, code: int, said: str) -> None:
    program = (
        f"import torch; torch.__version__ = {version!r}; import shardbook; print(shardbook.shard.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert done.stderr.count(said) == 1
    assert f"and this is {version}" in done.stderr


def test_pip_installs_the_same_versions() -> None:
    wanted = re.search(r'"torch([<>=][^"]*)"', (ROOT / "pyproject.toml").read_text("utf-8"))
    assert wanted is not None
    admitted = SpecifierSet(wanted[1])
    following = f"2.{int(versions.NEWEST.split('.')[1]) + 1}.0"
    assert f"{versions.OLDEST}.0" in admitted
    assert f"{versions.NEWEST}.1" in admitted
    assert "2.10.1" not in admitted
    assert following not in admitted


def test_no_other_module_asks_for_a_version() -> None:
    asking = {
        path.relative_to(BOOK).as_posix()
        for path in BOOK.rglob("*.py")
        if re.search(r"torch\.__version__|TorchVersion|torch\.version\b", path.read_text("utf-8"))
    }
    # The first asks on behalf of this chapter, and the second prints the version in a lab.
    assert asking == {"foundations/torch_private.py", "__init__.py", "labs/notebook.py"}


def test_the_names_are_those_that_do_not_warn() -> None:
    assert versions.ALL_GATHER in ("all_gather_single", "all_gather_into_tensor")
    assert versions.REDUCE_SCATTER in ("reduce_scatter_single", "reduce_scatter_tensor")
    if hasattr(dist, "all_gather_single"):
        assert (versions.ALL_GATHER, versions.REDUCE_SCATTER) == (
            "all_gather_single",
            "reduce_scatter_single",
        )
    assert [getattr(F, "linear_cross_entropy", None)] == [*versions.NEWER_LOSSES] or not versions.NEWER_LOSSES
