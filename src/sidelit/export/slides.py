"""# Slides from a lesson

> Each section of a lesson becomes a slide, which a teacher shows from a folder, without a network.

A deck is the page itself, cut where its sections and its drawings begin, so that drawings, steppers and
formulas are those of the site. It needs no script to be read: slides stand below each other, and a script
only lets keys leap from one to the next. What a deck does not hold, it does not lead to: a link to another
page leads to the public address of the site, or, where there is none, stays words.
"""

from __future__ import annotations

import html
import posixpath
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote

from sidelit.config.config import Config
from sidelit.config.prose import Prose
from sidelit.errors import SidelitError
from sidelit.files import atomic
from sidelit.site import navigation, site
from sidelit.text.columns import unpaired

# The words of a lesson, from their first element to their last.
_WORDS = re.compile(r'(?s)<div class="text">\n(.*?)(?=</div>\n</article>)')
# What asks for what only a site has: its search, the cards of names, its other pages and languages.
_FRAME = re.compile(r'<script src="(?P<file>[^"]*frame\.js)"[^>]*>')
_OF_A_SITE = re.compile(
    r'<script src="[^"]*(?:original|newest)\.js".*?</script>\n?'
    r'|<link rel="(?:alternate|prev|next|canonical)"[^>]*>\n?'
    r'|<button class="menu.*?</button>\n?'
    r'|<nav class="panel".*?</nav>\n?'
    r'|<nav class="langs".*?</nav>\n?',
    re.DOTALL,
)
_LINK = re.compile(r'(?P<tag><a\b[^<>]*?) href="(?P<address>[^"]*)"')
_SCHEME = re.compile(r"[a-zA-Z][\w+.-]*:")
# The other files that a page asks for, and a stylesheet.
_ASKED = re.compile(r'(?:<link [^>]*?href|src|data-faces)="([^"#]*)"')
_URL = re.compile(r"""url\(["']?([^"')#]+)""")
# What has a slide to itself: a section of a chapter, and a drawing.
_ALONE = ("section", "figure")
# By its mark a folder is known to be one of the press's own, which a later deck may replace.
_ALWAYS = (atomic.MARK, "assets/slides.css", "assets/slides.js")


def slides(
    config: Config,
    name: str,
    out: Path | None,
    langs: Sequence[str] = (),
    told: site.BuildListener = site.nobody,
) -> list[Path]:
    """Write the deck of a lesson in some languages, by default in each; returns its files.

    :param name: the page, as in `lessons/one_step` or `one_step`.
    :param out: the folder that takes this deck and nothing else; by default one in `build/slides/`.
    :param told: hears what the configuration allows to be wrong.

    Raises `SidelitError` if there is no such lesson, the site has a mistake, or the disk refuses.
    """
    lesson = found(site.sound(config), name)
    out = out or config.project / "build" / "slides" / PurePosixPath(lesson.output).stem
    atomic.check_target(out)
    files, done = site.files(config)
    told(done)
    addresses = [navigation.address(config, lesson.output, lang) for lang in langs or config.languages]
    decks = {
        address: deck(files[address].decode(), address, addresses, config.public.here).encode()
        for address in addresses
    }
    atomic.write_folder(needed(files, decks) | decks, out)
    return [out / address for address in addresses]


def found(config: Config, name: str) -> Prose:
    """The lesson or the lab of a name, or of the last part of a name.

    Raises `SidelitError` if there is none.
    """
    known = {each.name: each for each in config.lessons}
    for key, lesson in known.items():
        if name in (key, key.rpartition("/")[2]):
            return lesson
    hint = f"it has {', '.join(known)}" if known else "its configuration names none"
    raise SidelitError(f"{name!r} is not a lesson of this site", hint=hint)


def deck(text: str, address: str, decks: Collection[str], public: str = "") -> str:
    """The page of a lesson as slides.

    :param text: the page as it stands in the site.
    :param address: where it lies there.
    :param decks: the addresses of all pages that the deck holds.
    :param public: the address of the root of the site, where links to what is in no deck lead.
    """
    folder = posixpath.dirname(address)

    def there(link: re.Match[str]) -> str:
        path, mark, place = link["address"].partition("#")
        page = posixpath.normpath(posixpath.join(folder, unquote(path)))
        if not path or _SCHEME.match(path) or page in decks:
            return link[0]
        return f'{link["tag"]} href="{public}{quote(page)}{mark}{place}"' if public else link["tag"]

    assets = posixpath.relpath("assets", folder or ".")
    sheet = f'<link rel="stylesheet" href="{assets}/slides.css">'
    own = f'{sheet}\n<script src="{assets}/slides.js" defer></script>'
    made = _FRAME.sub(r'<script src="\g<file>" defer>', _OF_A_SITE.sub("", text))
    made = made.replace("</head>", f"{own}\n</head>", 1).replace('<body class="', '<body class="deck ', 1)
    return _LINK.sub(there, _WORDS.sub(lambda words: "</div>\n".join(_cut(words[1])), made))


def _cut(words: str) -> Iterator[str]:
    """The slides of a page, each without its end.

    A heading begins one, and so do a quoted section and a drawing, which share theirs with nothing but a few
    words that lead to them.
    """
    heading, above = "", ""
    held: list[tuple[str, str]] = []
    for tag, element in unpaired(words):
        tags = [each for each, _ in held]
        if held and (tag == "h2" or tags[-1] in _ALONE or (tag in _ALONE and not _leads(tags))):
            yield _slide(above, held)
            above, held = heading, []
        if tag == "h2":
            heading = html.unescape(re.sub("<[^>]*>", "", element)).strip()
        held.append((tag, element))
    yield _slide(above, held)


def _leads(tags: Sequence[str]) -> bool:
    """Whether words are short enough to lead to what follows: a heading and two paragraphs at most."""
    return {*tags} <= {"h2", "p"} and tags.count("p") <= 2


def _slide(above: str, held: Sequence[tuple[str, str]]) -> str:
    """A slide; one that goes on with a section says which."""
    goes_on = f' data-section="{html.escape(above)}"' if above and held[0][0] != "h2" else ""
    return f'<div class="text"{goes_on}>\n{"".join(element for _, element in held)}'


def needed(files: Mapping[str, bytes], pages: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of a site that pages ask for, and what those ask for in turn."""
    found: dict[str, bytes] = {}
    waiting = [*_ALWAYS, *(name for page in pages for name in _asked(page, pages[page]))]
    while waiting:
        name = waiting.pop()
        if name not in found and name in files and name not in pages:
            found[name] = files[name]
            waiting += _asked(name, found[name])
    return found


def _asked(name: str, content: bytes) -> list[str]:
    if not name.endswith((".html", ".css", ".svg")):
        return []
    text, folder = content.decode(), posixpath.dirname(name)
    lists = (_ASKED if name.endswith(".html") else _URL).findall(text)
    return [
        posixpath.normpath(posixpath.join(folder, unquote(each))) for said in lists for each in said.split()
    ]
