"""Fail, in one line, if this environment holds torch: the press reads the book and must never run it."""

import importlib.util
import sys

if importlib.util.find_spec("torch"):
    sys.exit(f"{sys.prefix} holds torch, so a build in it proves nothing; remove the folder and `make site`")
print(f"{sys.prefix} holds no torch.")
