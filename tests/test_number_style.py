"""Numbers and units are written in one way: the tool finds nothing, and finds what is put there."""

from __future__ import annotations

from pathlib import Path

import number_style

SENTENCES = {
    "ja": ("12.5 %、3ミリ秒と 1.2Bパラメータ", "12.5%、3 msと 12億パラメータ"),
    "zh": ("12.5 %、3 毫秒后，一个 7.5B 参数的", "12.5%、3 ms 后，一个 75 亿参数的"),
}


def test_all_numbers_of_the_book_are_written_in_one_way() -> None:
    assert [*number_style.complaints()] == []


def test_what_is_written_in_another_way_is_found_and_mended(tmp_path: Path) -> None:
    page = tmp_path / "site" / "pages" / "x.md"
    page.parent.mkdir(parents=True)
    page.write_text("About 12 % of `7 % 3` and $7 % 3$.\n", "utf-8")
    code = tmp_path / "src" / "x.py"
    code.parent.mkdir()
    code.write_text('"""Some 12 % more."""\nx = 7 % x  # 3 % of it\n', "utf-8")
    for lang, (said, _) in SENTENCES.items():
        book = tmp_path / "site" / "locale" / lang / "x.po"
        book.parent.mkdir(parents=True)
        book.write_text(f'msgid "12 % `a`"\nmsgstr "{said}"\n', "utf-8")
    assert len([*number_style.complaints(tmp_path)]) == 7
    made = {
        path.name if path.suffix != ".po" else path.parent.name: new
        for path, _, new in number_style.mended(tmp_path)
    }
    assert made["x.md"] == "About 12% of `7 % 3` and $7 % 3$.\n"
    assert made["x.py"] == '"""Some 12% more."""\nx = 7 % x  # 3% of it\n'
    for lang, (_, mended) in SENTENCES.items():
        assert made[lang] == f'msgid "12% `a`"\nmsgstr "{mended}"\n'
