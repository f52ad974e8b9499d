"""A project's own templates, assets and words over those of the press."""

from __future__ import annotations

from pathlib import Path

import pytest

from press.project import edit, sidelit
from sidelit.files import assets


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def html(sample: Path, name: str) -> str:
    sidelit("build", cwd=sample)
    return (sample / "build/site" / name).read_text(encoding="utf-8")


def test_a_template_of_the_project_shadows_ours_and_reaches_it(sample: Path) -> None:
    write(
        sample / "site/templates/base.html",
        '{% extends "press/base.html" %}\n{% block head %}'
        '<link rel="stylesheet" href="{{ asset("ours.css") }}">'
        "{% endblock %}\n",
    )
    write(sample / "site/assets/ours.css", "body { color: red }\n")
    write(sample / "site/templates/foot.html", "<footer>{{ own.made }}</footer>\n")
    for code, made in (("en", "Made by us"), ("ja", "自作"), ("zh", "自制")):
        write(sample / f"site/ui/{code}.toml", f'[own]\nmade = "{made}"\n')
    page = html(sample, "ja/ring.html")
    assert '<link rel="stylesheet" href="../assets/ours.css">' in page
    # A chapter of the press extends what the project has put in the place of the frame.
    assert '<body class="chapter"' in page
    assert "<footer>自作</footer>" in page
    assert (sample / "build/site/assets/ours.css").read_text("utf-8") == "body { color: red }\n"


@pytest.mark.full
def test_an_asset_of_ours_is_exchanged_only_on_purpose(sample: Path) -> None:
    write(sample / "site/assets/print.css", "ours\n")
    told = sidelit("build", cwd=sample, code=1).stderr
    assert told.startswith("site/assets/print.css: two files would be written to assets/print.css")
    assert 'write `override_assets = ["print.css"]`' in told
    edit(
        sample / "site/sidelit.toml", 'title = "Sample"', 'title = "Sample"\noverride_assets = ["print.css"]'
    )
    html(sample, "ring.html")
    assert (sample / "build/site/assets/print.css").read_bytes() == b"ours\n"
    edit(sample / "site/sidelit.toml", '"print.css"', '"prind.css"')
    told = sidelit("build", cwd=sample, code=1).stderr
    assert told.startswith(
        "site/sidelit.toml:2: `override_assets` names 'prind.css', and the press has no such"
    )


def test_a_bundle_is_exchanged_by_its_parts(sample: Path) -> None:
    bundle = write(sample / "site/assets/frame.css", "ours\n")
    told = sidelit("build", cwd=sample, code=1).stderr
    assert told.startswith("site/assets/frame.css: two files would be written to assets/frame.css")
    assert told.endswith(
        "give it another name: the press makes frame.css of fonts.css, colours.css, page.css, sidebar.css\n"
    )
    bundle.rename(bundle.with_name("page.css"))
    line = edit(
        sample / "site/sidelit.toml", 'title = "Sample"', 'title = "Sample"\noverride_assets = ["frame.css"]'
    )
    told = sidelit("build", cwd=sample, code=1).stderr
    where = f"site/sidelit.toml:{line + 1}: `override_assets` names 'frame.css'"
    parts = "fonts.css, colours.css, page.css, sidebar.css"
    assert told == f"{where}, which the press makes of several files; name some of {parts}\n"


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{{ ui.nothing }}", "site/templates/foot.html:1: the template fails"),
        ("\n{{ own.nothing }}", "site/templates/foot.html:2: the template fails"),
        ("\n\n{% if %}", "site/templates/foot.html:3: not a valid template"),
        ("{{ 1 // 0 }}", "site/templates/foot.html:1: the template fails"),
        ("{{ ui.helo }}", "site/templates/foot.html:1: the template fails: there is no word called 'helo'"),
        (
            '\n{% include "nope.html" %}',
            "site/templates/foot.html:2: the template fails: there is no nope.html",
        ),
        ('{% include "foot.html" %}', "site/templates/foot.html:1: the template fails: it is part of itself"),
        ('{% extends "foot.html" %}', "site/templates/foot.html:1: the template fails: it is part of itself"),
        ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "site/templates: the template fails: it is part of"),
        ("{{ range(10**17)|list }}", "site/templates/foot.html:1: the template fails"),
    ],
)
def test_a_mistake_in_a_template_of_the_project_has_its_line(sample: Path, text: str, said: str) -> None:
    write(sample / "site/templates/foot.html", text)
    assert sidelit("build", cwd=sample, code=1).stderr.startswith(said)


def test_a_template_that_is_not_utf_8_is_named(sample: Path) -> None:
    write(sample / "site/templates/foot.html", "").write_bytes("Grüße".encode("latin-1"))
    told = sidelit("build", cwd=sample, code=1).stderr
    assert told == "site/templates/foot.html: the template fails: it is not UTF-8\n"


def test_own_words_stand_in_every_language(sample: Path) -> None:
    write(sample / "site/ui/ja.toml", '[own]\nmade = "自作"\n')
    told = sidelit("build", cwd=sample, code=1).stderr
    assert told.startswith("site/ui/en.toml:1: words of the project's own templates are missing: made; ")


def test_files_that_have_no_place_among_assets(sample: Path, tmp_path: Path) -> None:
    page = write(sample / "site/assets/sub/page.html", "<script>")
    told = sidelit("build", cwd=sample, code=1).stderr
    assert told.startswith("site/assets/sub/page.html: an HTML file among the assets")
    page.unlink()
    secret = write(tmp_path / "secret", "s")
    (sample / "site/assets/ours.txt").symlink_to(secret)
    assert "leads out of the project's folder" in sidelit("build", cwd=sample, code=1).stderr


@pytest.mark.parametrize("name", [name for name, _ in assets.asset_files() if name.endswith(".css")])
def test_no_rule_of_a_stylesheet_stands_twice(name: str) -> None:
    """Half of a merge once stood behind a selector, and undid the rule that was meant to be narrowed."""
    rules = (assets.templates_folder() / "assets" / name).read_text("utf-8").splitlines()
    long = [rule for rule in rules if rule.endswith("}") and len(rule) > 40]
    assert sorted(long) == sorted(set(long))
