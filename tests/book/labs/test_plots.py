"""Plots of a lab: the same bytes, labels that can be drawn, colours that differ in grey."""

from __future__ import annotations

import io
import itertools
from types import SimpleNamespace

import matplotlib
import pytest
from matplotlib import colors, font_manager

from shardbook import labs
from shardbook.labs import notebook


@pytest.fixture(autouse=True)
def _no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    matplotlib.use("agg")
    monkeypatch.setenv("SHARDBOOK_LANG", "en")
    notebook.font.cache_clear()
    notebook.say_what_to_install.cache_clear()


def drawn() -> bytes:
    figure, axes = labs.figure()
    axes.bar(["a", "b"], [1, 2])
    axes.plot([0, 1], [1, 2], label="line")
    axes.legend()
    written = io.BytesIO()
    figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    return written.getvalue()


@pytest.mark.full
def test_the_same_plot_is_the_same_bytes() -> None:
    first = drawn()
    assert first == drawn()
    assert b"<text" in first


def installed(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    fonts = [SimpleNamespace(name=name) for name in names]
    monkeypatch.setattr(font_manager, "fontManager", SimpleNamespace(ttflist=fonts))


def test_a_label_is_translated_only_if_a_font_can_draw_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = "no GPU"
    monkeypatch.setenv("SHARDBOOK_LANG", "ja")
    installed(monkeypatch, "DejaVu Sans")
    assert [labs.label(sentence), labs.label(sentence)] == [sentence] * 2
    # It is said once, in the reader's language.
    assert capsys.readouterr().out.count("Noto Sans CJK JP") == 1
    notebook.font.cache_clear()
    installed(monkeypatch, "DejaVu Sans", "Meiryo")
    assert labs.label(sentence) == labs.tell(sentence) != sentence
    assert notebook.style()["font.family"] == ["Meiryo", "DejaVu Sans"]
    monkeypatch.setenv("SHARDBOOK_LANG", "en")
    assert notebook.style()["font.family"] == ["DejaVu Sans"]
    assert labs.label(sentence) == sentence


def test_the_colours_differ_in_grey() -> None:
    def luminance(colour: str) -> float:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colors.to_rgb(colour)]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    found = [luminance(colour) for colour in notebook.COLOURS]
    # By the contrast of WCAG, in which 1 means the same brightness.
    contrasts = [(lighter + 0.05) / (darker + 0.05) for darker, lighter in itertools.pairwise(found)]
    assert min(contrasts) >= 1.35
