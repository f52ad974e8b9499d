"""A site in any languages: what its first language is, and where the words of the interface come from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from press.project import edit, page, sidelit, translate
from sidelit.config import config, languages
from sidelit.errors import SidelitError
from sidelit.files import assets

ENGLISH = (assets.templates_folder() / "ui" / "en.toml").read_text(encoding="utf-8")


def spoken(name: str, short: str, more: str = "", words: str = "") -> str:
    """A file of interface words that is complete: those of the press, some of them exchanged."""
    text = ENGLISH.replace('name = "English"\nshort = "EN"', f'name = "{name}"\nshort = "{short}"{more}')
    for line in words.splitlines():
        key = line.partition(" = ")[0]
        text, count = re.subn(rf"(?m)^{key} = .*$", line, text)
        assert count == 1, key
    return text


def project(folder: Path, codes: str, source: str, **ui: str) -> Path:
    """A project of one source."""
    for name, text in {
        "site/sidelit.toml": f'title = "Ring"\nlanguages = [{codes}]\n\n[[front]]\nsource = "index.md"\n\n'
        '[[parts]]\nlabel = "Teile"\nchapters = [{ source = "ring.py" }]\n\n'
        '[[back]]\nsource = "glossary.md"\nappend = "glossary"\n',
        "site/pages/index.md": "# Anfang\n",
        "site/pages/glossary.md": "# Wörter\n",
        "src/ring.py": source,
        **{f"site/ui/{code.replace('_', '-')}.toml": text for code, text in ui.items()},
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


GERMAN = '''"""# Der Ring

> Die Größe bleibt gleich.
"""


def grow(size):
    """Der Ring wächst."""
    # ## Über die Größe
    #
    # Sie wächst um 1.
    return size + 1
'''
WORDS = 'skip = "Zum Text"\ncontents = "Inhalt"\nnext = "Weiter"'
DEUTSCH = spoken("Deutsch", "DE", words=WORDS)


@pytest.fixture
def german(tmp_path: Path) -> Path:
    """A project that is written in German and translated into English."""
    return project(tmp_path, '"de", "en"', GERMAN, de=DEUTSCH)


def test_the_first_language_is_what_the_sources_are_written_in(german: Path) -> None:
    assert config.load(german / "site/sidelit.toml").source_language == "de"
    sidelit("sync", cwd=german)
    assert [path.name for path in (german / "site/locale").iterdir()] == ["en"]
    translate(
        german / "site/locale/en/ring.po", {"Der Ring": "The ring", "Der Ring wächst.": "The ring grows."}
    )
    sidelit("build", cwd=german)
    built = german / "build/site"
    written, translated = (page(built, name) for name in ("ring.html", "en/ring.html"))
    assert (written.lang, translated.lang) == ("de", "en")
    assert written.sections == translated.sections == ["module", "grow", "grow/uber-die-grosse"]
    assert "Der Ring wächst." in written.text
    assert "untranslated" not in (built / "ring.html").read_text(encoding="utf-8")
    assert "The ring grows." in translated.text
    html = (built / "en/ring.html").read_text(encoding="utf-8")
    assert '<p class="lede" lang="de">Die Größe bleibt gleich.' in html
    assert "Not translated yet; shown in the original" in html


def test_its_words_and_its_name_come_from_the_project(german: Path) -> None:
    sidelit("build", cwd=german)
    html = (german / "build/site/ring.html").read_text(encoding="utf-8")
    assert ">Zum Text</a>" in html
    assert '<span class="long">Deutsch</span><span class="short" aria-hidden="true">DE</span>' in html
    assert 'hreflang="en"' in html


def test_a_german_glossary_knows_german_terms(german: Path) -> None:
    row = '[[term]]\nde = "Ring"\nen = "ring"\nnever = ["hoop"]\n'
    row += 'meaning = { de = "Ein `Kreis`.", en = "A `circle`." }\n'
    (german / "site/glossary.toml").write_text(row, encoding="utf-8")
    sidelit("sync", cwd=german)
    translate(german / "site/locale/en/ring.po", {"Der Ring wächst.": "The hoop grows."})
    told = sidelit("lint", cwd=german, code=1).stderr
    assert "'Ring' is never hoop; the glossary says ring" in told
    sidelit("build", cwd=german)
    html = (german / "build/site/en/glossary.html").read_text(encoding="utf-8")
    assert '<th scope="row" lang="de">Ring</th><td lang="en" data-label="English">ring</td>' in html
    assert '<span lang="en">hoop</span>' in html
    assert "A <code>circle</code>." in html


ARABIC = '"""# الحلقة\n\nحلقة بسيطة.\n"""\n# ## القسم الأول\n#\n# نص قصير.\nsize = 1\n'


def test_a_language_that_runs_from_right_to_left(tmp_path: Path) -> None:
    words = spoken("العربية", "ع", '\ndirection = "rtl"', 'skip = "إلى النص"')
    project(tmp_path, '"ar"', ARABIC, ar=words)
    sidelit("build", cwd=tmp_path)
    html = (tmp_path / "build/site/ring.html").read_text(encoding="utf-8")
    assert '<html lang="ar" dir="rtl">' in html
    assert ">إلى النص</a>" in html
    shown = page(tmp_path / "build/site", "ring.html")
    assert len(set(shown.ids)) == len(shown.ids)
    assert all(name.isascii() for name in shown.sections)


def test_a_project_may_exchange_single_words_of_the_press(tmp_path: Path) -> None:
    project(tmp_path, '"en", "pt-BR"', GERMAN, en='[ui]\nskip = "Jump"\n', pt_BR=spoken("Português", "PT"))
    sidelit("build", cwd=tmp_path)
    html = (tmp_path / "build/site/ring.html").read_text(encoding="utf-8")
    assert ">Jump</a>" in html
    assert ">Contents</" in html
    assert page(tmp_path / "build/site", "pt-BR/ring.html").lang == "pt-BR"


def test_a_file_that_is_not_finished_says_so(german: Path) -> None:
    short = '[language]\nname = "Deutsch"\nshort = "DE"\n\n[ui]\nskip = "Zum Text"\n'
    (german / "site/ui/de.toml").write_text(short, encoding="utf-8")
    told = sidelit("build", cwd=german, code=1).stderr
    assert told.startswith(
        "site/ui/de.toml:5: words of the interface are missing: breadcrumbs, languages, contents,"
    )
    assert 'write them under [ui], or `fallback = "en"` under [language]' in told
    edit(german / "site/ui/de.toml", 'short = "DE"', 'short = "DE"\nfallback = "en"')
    sidelit("build", cwd=german)
    html = (german / "build/site/ring.html").read_text(encoding="utf-8")
    assert ">Zum Text</a>" in html
    assert ">Contents</" in html


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name = "Deutsch"\n', "", "[language] lacks `name`"),
        ('short = "DE"', 'short = "DE"\ndirection = "down"', '`direction` is \'down\'; write "ltr" or "rtl"'),
        ('short = "DE"', 'short = "DE"\ncjk = "no"', "`cjk` must be a boolean"),
        ('short = "DE"', 'short = "DE"\nfallback = "xx"', "`fallback` names 'xx'"),
        ('short = "DE"', 'short = "DE"\ntag = "d"', "'d' is no tag of a language"),
        ("skip = ", "skipp = ", "the interface has no word `skipp`; did you mean `skip`?"),
        ('"Zum Text"', '"Zum {text}"', "nothing is put into the blank {text} of `skip`; it has none"),
        ('"Zum Text"', '"Zum {Text"', "a brace in `skip` has no partner"),
        ('"Zum Text"', "7", "the word `skip` must be a string"),
        ("stop = [", 'stop = "der"\nmore = [', "`stop` must be a list"),
        ("stop = [", "stops = [", "unknown key `stops`"),
        ('"ß" = "ss"', '"ß" = 1', "what stands for 'ß' must be a string"),
        ("'(..+)e' =", "'(..+e' =", "'(..+e' is no pattern: "),
    ],
)
def test_a_mistake_in_a_file_of_words_has_its_line(german: Path, old: str, new: str, said: str) -> None:
    line = edit(german / "site/ui/de.toml", old, new)
    told = sidelit("build", cwd=german, code=1).stderr
    found = re.match(r"site/ui/de\.toml:(\d+): ", told)
    assert found, told
    assert abs(int(found[1]) - line) <= 2
    assert said in told


def test_a_language_without_words_names_the_file_to_write(german: Path) -> None:
    (german / "site/ui/de.toml").unlink()
    told = sidelit("build", cwd=german, code=1).stderr
    assert told.startswith("site/sidelit.toml:2: the press has no words for the language 'de' (en, ja, zh); ")
    assert 'write site/ui/de.toml with `fallback = "en"` under [language]' in told
    assert told.endswith("en.toml\n")


def test_what_is_no_code_of_a_language_is_refused() -> None:
    with pytest.raises(SidelitError, match="no code of a language"):
        languages.load("../en")


@pytest.mark.full
def test_files_are_printed_in_a_language_of_their_project(german: Path) -> None:
    sidelit("sync", cwd=german)
    translate(german / "site/locale/en/ring.po", {"Der Ring": "The ring"})
    sidelit("print", "src/ring.py", "--lang", "en", "--out", "english", cwd=german)
    assert "The ring" in page(german / "english", "ring.html").text
    sidelit("print", "src/ring.py", "--lang", "de", "--out", "german", cwd=german)
    html = (german / "german/ring.html").read_text(encoding="utf-8")
    assert '<html lang="de">' in html
    assert ">Zum Text</a>" in html
    assert "Der Ring" in html
    aside = ("--locale", "site/locale", "--source", "de", "--out", "aside")
    sidelit("print", "src/ring.py", "--lang", "en", *aside, cwd=german)
    assert "The ring" in page(german / "aside", "ring.html").text


@pytest.fixture
def kept(german: Path) -> Path:
    """A project whose chapters stay in German, though its other pages are translated into English."""
    edit(german / "site/sidelit.toml", 'label = "Teile"', 'label = "Teile"\nlanguages = ["de"]')
    edit(german / "site/sidelit.toml", 'title = "Ring"', 'title = "Ring"\nurl = "https://example.org/ring/"')
    return german


@pytest.mark.full
def test_a_part_may_stay_in_the_language_of_its_sources(kept: Path) -> None:
    sidelit("sync", cwd=kept)
    assert not (kept / "site/locale/en/ring.po").exists()
    told = sidelit("status", cwd=kept).stdout
    assert [line.split()[0] for line in told.splitlines()[1:]] == ["pages/index", "pages/glossary", "site"]
    sidelit("build", cwd=kept)
    html = (kept / "build/site/en/ring.html").read_text(encoding="utf-8")
    assert html.count("Not translated; shown in the original language") == 1
    for shown in ('<h1 lang="de">Der Ring', '<p class="lede" lang="de">', '<h2 lang="de">Über die Größe'):
        assert shown in html
    assert re.search(r'<p lang="de"[^>]*>Sie wächst um 1\.', html)
    # Neither the state of a sentence that waits for a translator, nor a link to the same words once more.
    assert "untranslated" not in html
    assert "Not translated yet" not in html
    assert not re.search(r'<p class="acts">.*hreflang', html)
    assert "original.js" not in html
    edit(kept / "site/sidelit.toml", 'languages = ["de"]\n', "")
    sidelit("build", cwd=kept)
    assert "original.js" in (kept / "build/site/en/ring.html").read_text(encoding="utf-8")


def test_to_the_world_a_page_that_stays_is_one_page(kept: Path) -> None:
    sidelit("build", cwd=kept)
    built = kept / "build/site"
    html = (built / "en/ring.html").read_text(encoding="utf-8")
    assert '<link rel="canonical" href="https://example.org/ring/ring.html">' in html
    assert 'hreflang="en" href="https' not in html
    assert '<meta name="citation_language" content="de">' in html
    assert "/en/ring.html" not in (built / "sitemap.xml").read_text(encoding="utf-8")
    assert "/en/index.html" in (built / "sitemap.xml").read_text(encoding="utf-8")
    said = sidelit("cite", "grow", "--lang", "en", "--form", "csl", cwd=kept).stdout
    assert '"language": "de"' in said


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ('["en"]', "`languages` must begin with 'de', what everything is written in"),
        ('["de", "fr"]', "`languages` names 'fr', which is no language of this site; it has de, en"),
        ('["de", "de"]', "and name each once"),
    ],
)
def test_the_languages_of_a_part_are_those_of_the_site(german: Path, said: str, what: str) -> None:
    line = edit(german / "site/sidelit.toml", 'label = "Teile"', f'label = "Teile"\nlanguages = {said}')
    told = sidelit("build", cwd=german, code=1).stderr
    assert what in told
    assert abs(int(told.split(":")[1]) - line) <= 2
