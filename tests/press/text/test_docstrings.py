r"""Docstrings in reST and in the styles of Google and NumPy read as well as those in Markdown."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it.token import Token

from press.project import sidelit
from sidelit.errors import SidelitError
from sidelit.text import inlines, markup, prose
from sidelit.text.docstrings import reader, sections


def parsed(text: str, dialect: str = "auto", line: int = 1) -> tuple[tuple[Token, ...], list[str]]:
    """The tokens of a docstring, and what was told about it."""
    told: list[SidelitError] = []
    return reader.reader(dialect, [text], "x.py", told.append).read(text, line), [str(each) for each in told]


def html(text: str, dialect: str = "auto", told: int = 0) -> str:
    """A docstring as HTML, formulas as code; `told` is how much there is to complain about."""
    tokens, complaints = parsed(text, dialect)
    assert len(complaints) == told, complaints
    context = inlines.RenderContext(resolve=lambda href, line: f"to/{href}")
    return re.sub(r"\s+", " ", prose.render(tokens, context=context))


SENTENCES = {
    "a formula": (r"Let :math:`\frac{a}{b}` be.", r"Let <code>$\frac{a}{b}$</code> be."),
    "a formula before a digit": (r"So :math:`x`\ 2 is.", "So <code>$x$</code>\u200b2 is."),
    "a name": ("See :class:`~a.b.C` and :py:meth:`f()`.", "See <code>C</code> and <code>f()</code>."),
    "a name in other words": (":func:`the sum <a.b.f>` it is", "<p><code>the sum</code> it is</p>"),
    "a place of another page": (":ref:`the guide <guide>` and :term:`word`", "<p>the guide and word</p>"),
    "an unknown role": ("An :oddity:`x y` here.", "An <code>x y</code> here."),
    "an unknown role with a target": ("An :oddity:`x y <a.b>` here.", "An <code>x y</code> here."),
    "an unknown role behind words": (
        "An `x`:oddity: and :class:`y`.",
        "An <code>x</code> and <code>y</code>.",
    ),
    "a link": (
        "Go `there <https://x.org/a_b>`_ now.",
        'Go <a href="https://x.org/a_b" rel="noopener">there</a> now.',
    ),
    "a target": (
        "See `that`_.\n\n.. _that: https://x.org",
        '<a href="https://x.org" rel="noopener">that</a>.',
    ),
    "a target of another document": ("See `the *other* text`_ of ``x``.", "See the *other* text of <code>x"),
    "a word that ends in a line": ("The ``a`` of size_ is x_.", "of size_ is x_."),
    "a substitution": ("It is |so|.\n\n.. |so| replace:: *thus*", "<p>It is <em>thus</em>.</p>"),
    "stars of Python": ("With ``x``, *args and **kwargs.", "<code>x</code>, *args and **kwargs."),
    "signs of Markdown": (
        "``a``, ``b``: :mod:`m` [x](y) <b> $5 and $10 a_b_ # `c`",
        "[x](y) &lt;b&gt; $5 and $10 a_b_ # <code>c</code>",
    ),
    "a formula between dollars": (
        r"A :class:`x` of $O(|V| + 2 \cdot |E|)$ and **bold $n^2$**.",
        r"of <code>$O(|V| + 2 \cdot |E|)$</code> and <strong>bold <code>$n^2$</code></strong>.",
    ),
    "a variable of a shell": (
        "A :class:`x` in $HOME/$USER, ``$PATH`` and ``$Y``, for $5 or $6.",
        "in $HOME/$USER, <code>$PATH</code> and <code>$Y</code>, for $5 or $6.",
    ),
    "a plural": (
        "The ``x``, `Attribute`s and ``int``s of a`b`.",
        "<code>Attribute</code>s and <code>int</code>s of a<code>b</code>.",
    ),
    "a note at a word": ("An algorithm[1]_.\n\n.. [1] A *work*.", 'algorithm<sup class="footnote-ref">'),
    "a work": (
        ":doi:`Its title <10.1/a>`, :arXiv:`1910.02054`",
        '<a href="https://doi.org/10.1/a" rel="noopener">Its title</a>, '
        '<a href="https://arxiv.org/abs/1910.02054" rel="noopener">arxiv:1910.02054</a>',
    ),
    "a name of another project": ("See :external+python:py:mod:`xml`.", "See <code>xml</code>."),
    "an initial": (":math:`x`\n\nA. Turing, 1936.", "<p>A. Turing, 1936.</p>"),
}


@pytest.mark.parametrize(("text", "shown"), SENTENCES.values(), ids=SENTENCES)
def test_a_sentence_of_rest(text: str, shown: str) -> None:
    assert shown in html(text, told=int("oddity" in text))


def test_a_list_below_a_title_of_google_is_a_list() -> None:
    shown = html(
        "Print.\n\nSee Also:\n    * `Wikipedia: Prefix <https://x.org/a>`_\n    * ``one``: the first\n"
    )
    assert '<li><a href="https://x.org/a" rel="noopener">Wikipedia: Prefix</a></li>' in shown
    assert "<li><code>one</code>: the first</li>" in shown


BLOCKS = {
    "a formula": (
        ".. math::\n   :label: one\n\n   a &= b \\\\\n   c &= d",
        "<code>\\begin{split}a &amp;= b \\\\ c &amp;= d\\end{split}</code>",
    ),
    "two formulas": (".. math::\n\n   a = b\n\n   c = d", "\\begin{gathered}a = b\\\\ c = d\\end{gathered}"),
    "an environment": (
        ".. math::\n   \\begin{align} a \\end{align}",
        "<code>\\begin{align} a \\end{align}</code>",
    ),
    "a new thing": (
        ".. versionadded:: 3.4\n   It is *new*.",
        '<aside class="admonition version" role="note"> <p class="admonition-title">New in version 3.4</p> '
        "<p>It is <em>new</em>.</p> </aside>",
    ),
    "an old thing": (
        ".. deprecated:: 2.0 Use ``f``.",
        "Deprecated since version 2.0</p> <p>Use <code>f</code>.</p>",
    ),
    "a note": (".. note:: Be *careful*.", "Note</p> <p>Be <em>careful</em>.</p> </aside>"),
    "a danger": (".. danger::\n   Fire.", '<aside class="admonition warning" role="note">'),
    "see also": (".. seealso:: :mod:`x`", '<p class="admonition-title">See also</p>'),
    "a box with a title": (
        ".. admonition:: Mind `x`\n\n   Yes.",
        'title">Mind <code>x</code></p> <p>Yes.</p>',
    ),
    "an order to a tool": (".. index:: x\n.. currentmodule:: y\n\nText.", "<p>Text.</p> "),
    "what nobody knows": (".. oddity:: x\n   y", "<code>.. oddity:: x y </code></pre>"),
    "a file": (".. include:: /etc/passwd", "<code>.. include:: /etc/passwd </code></pre>"),
    "a table out of a file": (".. csv-table::\n   :file: /etc/passwd", ":file: /etc/passwd </code></pre>"),
    "HTML": (".. raw:: html\n\n   <b>x</b>", "&lt;b&gt;x&lt;/b&gt; </code></pre>"),
    "the day": (".. |day| date::\n\nIt is |day|.", "It is |day|."),
    "code": (
        "So::\n\n    x = 1\n",
        '<p>So:</p> <pre class="sample" tabindex="0" role="group" aria-label="Code',
    ),
    "an example": ("``f``\n\n>>> f(1)\n2\n", '<span class="gp">&gt;&gt;&gt; </span>'),
    "a simple table": (
        "==  ==\na   b\n==  ==\nx   y\n==  ==",
        '<th scope="col">a</th> <th scope="col">b</th> </tr> </thead> <tbody><tr><td>x</td> <td>y</td>',
    ),
    "a table with a frame": (
        "+---+---+\n| a | b |\n+===+===+\n| x     |\n+---+---+",
        '<td colspan="2">x</td>',
    ),
    "lines": ("| one ``x``\n|   two", "<p>one <code>x</code><br> two</p>"),
    "an example below its sentence": (
        "So ``f``:\n>>> f(1)\n2\n\nDone.",
        '<p>So <code>f</code>:</p> <pre class="sample"',
    ),
    "a definition": (
        "``f``\n    what it *is*",
        "<dl><dt><code>f</code></dt> <dd>what it <em>is</em></dd> </dl>",
    ),
    "a list": (":class:`x` has\n\n3. three\n4. four", '<ol start="3"><li>three</li> <li>four</li> </ol>'),
    "a footnote": (
        "Said in [1]_.\n\n.. [1] By *him*.",
        '<ol class="footnotes"> <li id="note-1"><p>By <em>him</em>. <a href="#ref-1-1"',
    ),
    "a work": ("Said in [Ho20]_.\n\n.. [Ho20] There.", '<sup class="footnote-ref"><a href="#note-1"'),
    "a footnote that is not there": ("Said in [7]_.", "Said in [7]."),
    "a picture": (".. image:: a.png\n   :alt: A *cat*", '<img src="to/a.png" alt="A *cat*"'),
    "a title": ("Title\n=====\n\nText with ``x``.", "<h1>Title</h1> <p>Text with <code>x</code>.</p>"),
    "types of parameters": (
        ":param x: the ``first``\n:type x: int, optional\n:rtype: str\n:returns: it\n\n.. note:: x",
        '<code>x</code> <span class="type">int, optional</span></th><td>the <code>first</code></td>',
    ),
    "a type that is returned": (
        ":returns: ``it``\n:rtype: str\n\n.. note:: x",
        "<code>str</code></th><td><code>it</code>",
    ),
    "two errors of one kind": (
        ":raises E: if ``a``\n:raises E: if b\n\n.. note:: x",
        "<td>if <code>a</code></td></tr> <tr>",
    ),
}
_TOLD = ("what nobody knows", "a file", "a table out of a file", "HTML", "the day")


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_of_rest(name: str) -> None:
    text, shown = BLOCKS[name]
    tokens, complaints = parsed(text)
    assert bool(complaints) == (name in _TOLD), complaints
    context = inlines.RenderContext(resolve=lambda href, line: f"to/{href}")
    assert shown in re.sub(
        r"\s+", " ", re.sub(r"</?span[^>]*>(?!&gt;|int|str)", "", "") + prose.render(tokens, context=context)
    )


NUMPY = """Solve it, see ``f``.

Parameters
----------
a, b : (..., M, M) array_like, optional
    Coefficient *matrix* [1]_.

    In two paragraphs.
**more
    The rest.

Returns
-------
x : {(M,), (M, K)} ndarray
    Solution.

See Also
--------
numpy.dot : the ``product``.
other, third

Notes
-----
Text.

References
----------
.. [1] A work.
"""


def test_the_sections_of_numpy() -> None:
    shown = html(NUMPY)
    for piece in [
        '<code>a, b</code> <span class="type">(..., M, M) array_like, optional</span></th>'
        '<td><p>Coefficient <em>matrix</em> <sup class="footnote-ref"><a href="#note-1"',
        "<p>In two paragraphs.</p> </td>",
        '<th scope="row"><code>**more</code></th><td>The rest.</td>',
        '<code>x</code> <span class="type">{(M,), (M, K)} ndarray</span></th><td>Solution.</td>',
        '<th scope="row"><code>numpy.dot</code></th><td>the <code>product</code>.</td>',
        '<th scope="row"><code>other, third</code></th><td></td>',
        "<p><strong>Notes</strong> </p> <p>Text.</p>",
        '<li id="note-1"><p>A work.',
    ]:
        assert piece in shown


GOOGLE = """Solve it, see :func:`~pkg.other`.

Args:
    a (int, optional): the first
        and its second line.
    **b: the rest: all

      - a list

Returns:
    Tensor: what it *found*.

Raises:
    ValueError: if not

Shape:
    - Input: :math:`(*)`

Note:
    Be careful.

Example:
    >>> f(1)
    1
"""


@pytest.mark.parametrize("markdown", [False, True])
def test_the_sections_of_google(markdown: bool) -> None:
    text = GOOGLE
    if markdown:
        text = text.replace(":func:`~pkg.other`", "[`other`](https://x.org)").replace(":math:`(*)`", "$(*)$")
    shown = html(text)
    for piece in [
        '<code>a</code> <span class="type">int, optional</span></th><td>the first and its second line.</td>',
        "<code>**b</code></th><td><p>the rest: all</p> <ul><li>a list</li> </ul> </td>",
        '<th scope="row"><code>Tensor</code></th><td>what it <em>found</em>.</td>',
        '<th scope="row"><code>ValueError</code></th><td>if not</td>',
        "<p><strong>Shape</strong></p> <ul><li>Input: <code>$(*)$</code></li> </ul>",
        '<aside class="admonition note" role="note"> <p class="admonition-title">Note</p> <p>Be careful.</p>',
        "<p><strong>Examples</strong> </p>",
        '<span class="gp">&gt;&gt;&gt; </span>',
    ]:
        assert piece in shown


UNSPACED = """Find it.
Parameters
----------
x : int
    The *first*.

Examples
--------
The same::

    # with a comment
    >>> f(1)

And this
>>> f(2)
3
"""


def test_what_lacks_a_blank_line_is_a_section_and_an_example() -> None:
    shown = html(UNSPACED + "\nSee :mod:`x`.\n")
    for piece in [
        '<code>x</code> <span class="type">int</span></th><td>The <em>first</em>.</td>',
        '# with a comment</span> <span class="gp">',
        "<p>And this</p> <pre",
        "<p>See <code>x</code>.</p>",
    ]:
        assert piece in shown
    # What is told about a line below names that line.
    assert parsed(UNSPACED + "\nSee :oddity:`x`.\n")[1][0].startswith("x.py:18:")


def test_a_list_that_is_none_is_printed_as_text() -> None:
    shown = html("Do it.\n\nArgs:\n    Nothing at all\n    needs *saying*.\n\nReturns:\n    It.")
    assert "<p><strong>Args</strong></p> <p>Nothing at all needs <em>saying</em>.</p>" in shown


SHAPES = "Text.\n\nArgs:\n    x: y\n\n.. note:: z"


@pytest.mark.parametrize(
    ("dialect", "kinds"),
    [
        ("markdown", set()),
        ("rest", {"admonition_open", "dl_open"}),
        ("google", {"admonition_open", "field_list_open"}),
        ("numpy", {"admonition_open", "dl_open"}),
        ("auto", {"admonition_open", "field_list_open"}),
    ],
)
def test_the_configuration_says_what_a_docstring_is_in(dialect: str, kinds: set[str]) -> None:
    found = {token.type for token in parsed(SHAPES, dialect)[0]}
    assert found & {"admonition_open", "dl_open", "field_list_open"} == kinds


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("See :class:`x`.", "rest"),
        ("Text.\n\n.. note::\n   x", "rest"),
        ("So::\n\n    x", "rest"),
        ("A [link](x.md).", "markdown"),
        ("A formula $x_1$.", "markdown"),
        ("```\n# Title\n.. note:: x\n```\n[a](b)", "markdown"),
        ("Words, and (more) of them.", "rest"),
        ("In $O(n)$ :mod:`x` finds ``R[u][v][w]``.", "rest"),
    ],
)
def test_a_guess_goes_by_the_marks_of_a_text_and_then_by_its_file(text: str, said: str) -> None:
    assert sections.markup(text, otherwise="rest") == said


MARKDOWN = """# Title

> Lede.

Text with `code`, $a:b$ and a list:

- one: two
  three

:param x: what it is
    and more
:notation $N$: a number

!!! note "Title"
    Text of it.
"""


def test_markdown_is_read_as_ever() -> None:
    assert [token.as_dict() for token in parsed(MARKDOWN)[0]] == [
        token.as_dict() for token in markup.parse(MARKDOWN, path="x.py")
    ]


def test_a_mistake_names_its_line() -> None:
    text = "One ``x``.\n\nArgs:\n    a: the first\n    b: the :oddity:`second`\n\n.. strange:: x\n"
    told = parsed(text, line=10)[1]
    assert [each.partition(": ")[0] for each in told] == ["x.py:14", "x.py:16"]


def test_sentences_are_units_of_translation_with_their_lines() -> None:
    tokens = parsed("One ``x``.\n\n.. note:: Two.\n\nArgs:\n    a: three\n    b:\n        *four*\n", line=10)[
        0
    ]
    units = [(token.content, markup.line_of(token)) for token in markup.units(tokens)]
    assert units == [("One `x`.", 10), ("Two.", 12), ("three", 15), ("*four*", 17)]


def test_a_text_leaves_no_role_behind_for_the_next_one() -> None:
    parsed(".. role:: mine\n.. default-role:: math\n\nA :mine:`x` and `y`.")
    assert "<code>x</code> and <code>y</code>" in html("See :mod:`z`, :mine:`x` and `y`.", told=1)


MESSAGES = {
    "a cell": ("===== =====\na     b\n===== =====\n1     ...\n...   2\n===== =====\n", "<td>...</td>", 0),
    "a framed cell": ("+---+-----+\n| a | ... |\n+---+-----+\n", "<td>...</td>", 0),
    "a type": (":param x: y\n:type x: a `b or *c\n", "a `b or *c", 0),
    "a cell with a directive": ("+-------------+\n| .. no:: b   |\n+-------------+\n", ".. no:: b", 1),
    "a list": ("- ...\n\n  ====\n  x\n", "====", 1),
    "a footnote": ("See [1]_.\n\n.. [1] *a\n", "*a", 0),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_what_docutils_says_about_a_text_is_no_part_of_it(name: str) -> None:
    text, shown, told = MESSAGES[name]
    page = html(text, "rest", told)
    assert shown in page.replace("<code>", "").replace("</code>", "")
    assert not re.search("Unexpected|Treating|start-string|Unknown", page)
    # One sentence is told, with its line.
    assert all(each.startswith("x.py:") and "reST: " in each for each in parsed(text, "rest", 7)[1])


def test_what_docutils_cannot_read_is_shown_as_it_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    from sidelit.text.docstrings import rest

    def fail(*pieces: object) -> None:
        raise AttributeError("x")

    monkeypatch.setattr(rest, "parse", fail)
    assert "<code>See :mod:`x`. </code>" in html("See :mod:`x`.", told=1)


def test_markdown_alone_imports_no_other_parser(tmp_path: Path) -> None:
    code = """
import sys
from sidelit.text.docstrings import reader
reader.reader("auto", [], "x.py", print).read("Plain *words* and $x$.", 1)
sys.exit(any(name in sys.modules for name in ("docutils", "docstring_parser")))
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False).returncode == 0


def test_a_site_says_its_dialect_for_all_and_for_a_part(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "src").mkdir()
    for name in ("a", "b"):
        (tmp_path / "src" / f"{name}.py").write_text('"""See :mod:`x`."""\n', encoding="utf-8")
    configured = 'title = "T"\ndialect = "auto"\n[[parts]]\nlabel = "A"\nchapters = [{ source = "a.py" }]\n'
    configured += '[[parts]]\nlabel = "B"\ndialect = "markdown"\nchapters = [{ source = "b.py" }]\n'
    file = tmp_path / "site/sidelit.toml"
    file.write_text(configured, encoding="utf-8")
    sidelit("build", cwd=tmp_path)
    pages = [(tmp_path / f"build/site/{name}.html").read_text("utf-8") for name in ("a", "b")]
    assert "See <code>x</code>." in pages[0]
    assert "See :mod:<code>x</code>." in pages[1]
    sidelit("print", "src/b.py", "--out", "out", "--dialect", "rest", cwd=tmp_path)
    assert "See <code>x</code>." in (tmp_path / "out/b.html").read_text("utf-8")
    file.write_text(configured.replace('"auto"', '"latex"'), encoding="utf-8")
    assert "sidelit.toml:2: unknown dialect 'latex'" in sidelit("build", cwd=tmp_path, code=1).stderr


NUMBERED = r"""
[[parts]]
label = "A"
chapters = [{ source = "a.py" }]
"""


@pytest.mark.parametrize(
    ("site", "part", "numbers"),
    [
        ("", "", 2),
        ('dialect = "auto"', "", 0),
        ('dialect = "auto"', 'dialect = "markdown"', 2),
        ("equation_numbers = false", "", 0),
        ('dialect = "rest"\nequation_numbers = true', "", 2),
        ("equation_numbers = false", "equation_numbers = true", 2),
    ],
)
def test_a_dialect_or_the_configuration_says_whether_equations_have_numbers(
    tmp_path: Path, site: str, part: str, numbers: int
) -> None:
    rows = r"\begin{align} a &= 1 \\ b &= 2 \end{align}"
    rows = f".. math::\n\n   {rows}" if "rest" in site else rows
    (tmp_path / "site").mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.py").write_text(f'r"""A.\n\n{rows}\n\n"""\n', "utf-8")
    (tmp_path / "site/sidelit.toml").write_text(f'title = "T"\n{site}\n{NUMBERED}{part}\n', "utf-8")
    sidelit("build", cwd=tmp_path)
    assert (tmp_path / "build/site/a.html").read_text("utf-8").count('"eqn-num"') == numbers
    sidelit("print", "src/a.py", "--out", "out", cwd=tmp_path)
    assert (tmp_path / "out/a.html").read_text("utf-8").count('"eqn-num"') == numbers


def test_what_belongs_to_no_site_has_the_numbers_that_its_author_wrote(tmp_path: Path) -> None:
    text = r"$$\begin{align} a &= 1 \\ b &= 2 \tag{7} \end{align}$$"
    (tmp_path / "a.py").write_text(f'r"""A.\n\n{text}\n"""\n', "utf-8")
    sidelit("print", "a.py", "--out", "out", cwd=tmp_path)
    shown = (tmp_path / "out/a.html").read_text("utf-8")
    assert '"eqn-num"' not in shown
    assert '<span class="katex-tag">' in shown


HEAD = """---
title: A ring
summary: >
  It forgets
  what is *oldest*.
---
"""


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        (HEAD + "\nText.", "# A ring\n\n> It forgets what is *oldest*.\n\n\n\n\nText."),
        (HEAD + "\n# Its own\n\nText.", "\n\n\n\n\n\n\n# Its own\n\nText."),
        ("---\ntitle: A\n---\nText.", "# A\n\n\nText."),
        ("---\na: [\n---\nText.", "---\na: [\n---\nText."),
        ("---\nText\n---\nText.", "---\nText\n---\nText."),
        ("---\nText, and no end.", "---\nText, and no end."),
        ("---\ntitle: [1]\n---\n", "\n\n\n"),
    ],
)
def test_front_matter_gives_a_title_where_the_text_has_none(text: str, printed: str) -> None:
    assert reader.titled(text) == printed


LINES = st.sampled_from(
    [
        *(
            "Parameters",
            "-----",
            "---",
            "title: t",
            "Args:",
            "Returns:",
            "x : int",
            "    x: y",
            "  z word",
            "",
        ),
        *(
            ".. note:: a",
            ".. x:: b",
            "   b",
            "a::",
            "- c",
            ":f:`~g`",
            "`",
            "|",
            "[1]_",
            ".. [1] n",
            "*",
            "\\",
        ),
        *("==  ==", "+--+", "| a", ":param p: q", "See Also", "1. one", "$", "`t <u>`_", "__ http://x"),
    ]
)


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]{4,}", text))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(LINES, max_size=14).map("\n".join) | st.text(max_size=40),
    st.sampled_from(["auto", "rest", "numpy"]),
)
def test_no_text_stops_the_press_and_no_word_is_lost(text: str, dialect: str) -> None:
    tokens, _ = parsed(text, dialect)
    context = inlines.RenderContext(resolve=lambda href, line: f"to/{href}", strict=False)
    shown = prose.render(tokens, context=context)
    # These say what a block is, and the press has a word for it in each language.
    assert _words(text) - {"note", "http", "title", "param", "parameters", "args", "returns"} <= _words(shown)
