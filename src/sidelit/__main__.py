"""# `python -m sidelit`

> The same as the command `sidelit`.
"""

import sys

from sidelit.cli import main

sys.exit(main())
