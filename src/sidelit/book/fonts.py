"""# Are there letters for it?

> A browser prints empty boxes for letters that no font has, and says nothing.

Pages carry their own fonts for Latin letters. Fonts for ideographs are as large as a whole site, so those of
the reader's system are used, and a machine that only builds may have none.
"""

from __future__ import annotations

import shutil
import subprocess

from sidelit.languages import Language


def lacking(language: Language) -> str | None:
    """What is wrong with the fonts of this machine for a language, as a sentence, or `None`.

    Where nobody can be asked, as on macOS and Windows, which bring such fonts, nothing is wrong.
    """
    asking = shutil.which("fc-list")
    if not language.cjk or asking is None:
        return None
    code = language.code.partition("-")[0]
    try:
        done = subprocess.run(
            [asking, f":lang={code}", "family"], capture_output=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode or done.stdout.strip():
        return None
    return (
        f"no font of this machine has the letters of {language.name}, and the book will show empty boxes; "
        "install one (Debian and Ubuntu: fonts-noto-cjk)"
    )
