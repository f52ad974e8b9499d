"""# A site to take along

> One folder, and one archive of it, that opens from a disk without a server and without a network.

The pages of a site are files beside each other already: every address in them is relative and names a file,
and the search reads scripts. So a pack is the site without what only a host needs, under a name that says
what it is. The archive has the same bytes whenever the same commit is packed.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

from sidelit.config import origin
from sidelit.config.config import Config
from sidelit.errors import SidelitError, refused
from sidelit.files import atomic
from sidelit.site import site

# What a host answers with, or what machines ask it for.
_HOSTED = re.compile(r"(?:.*/)?404\.html|robots\.txt|[^/]*\.xml|CNAME|\.nojekyll")
# What a page shows of its original, which is its words.
_MAIN = re.compile(r"(?s)<main\b.*</main>")
_CODE = re.compile(r'(?s)<pre class="code.*?</pre>')
# The first day that an archive can name.
_NO_DATE = "1980-01-01"


def pack(config: Config, out: Path, told: site.BuildListener = site.nobody) -> tuple[Path, Path]:
    """Write a site as a folder and as an archive below `out`; returns both paths.

    What the configuration allows to be wrong is `told`.

    Raises `SidelitError` if the site has a mistake, or the disk refuses; then nothing is changed.
    """
    state = origin.origin(config)
    name = "-".join(filter(None, (slug(config.title), state.version)))
    folder, archive = out / name, out / f"{name}.zip"
    atomic.check_target(folder)
    made, done = site.files(config)
    told(done)
    files = {path: data for path, data in made.items() if not _HOSTED.fullmatch(path)}
    files.update(originals(config, files))
    atomic.write_folder(files, folder)
    draft = archive.with_name(f".{archive.name}")
    try:
        with atomic.tidied(lambda: draft.unlink(missing_ok=True)):
            draft.write_bytes(zipped(files, name, state.date or _NO_DATE))
            draft.replace(archive)
    except OSError as error:
        raise SidelitError(str(refused(error))) from None
    return folder, archive


def originals(config: Config, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The words of the pages that others are translations of, as scripts.

    A page that was opened from a disk may not read another page, but it may ask for a script.
    """
    made = {}
    for path, data in files.items():
        translations = (files.get(f"{lang}/{path}", b"") for lang in config.languages[1:])
        main = _MAIN.search(data.decode()) if path.endswith(".html") else None
        if main and any(b"/original.js" in page for page in translations):
            words = json.dumps(_CODE.sub("", main[0]))
            made[f"{path}.js"] = f"globalThis.sidelitOriginal={words};\n".encode()
    return made


def zipped(files: Mapping[str, bytes], folder: str, date: str) -> bytes:
    """Files below a folder as an archive, each of the `date`, as in 2026-01-31: no clock is in it."""
    year, month, day = map(int, date.split("-"))
    made = BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in sorted(files.items()):
            entry = zipfile.ZipInfo(f"{folder}/{path}", (year, month, day, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            # Readable by everybody, and written by Unix on every system.
            entry.create_system, entry.external_attr = 3, 0o100644 << 16
            archive.writestr(entry, data)
    return made.getvalue()


def slug(title: str) -> str:
    """A title as a part of a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "site"
