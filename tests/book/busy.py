"""A thread that holds a tensor while it works, as gloo's do for a moment after an exchange."""

from __future__ import annotations

import threading

from torch import Tensor

WORK = 2_000_000


def held_for_a_while(tensor: Tensor) -> None:
    """Hand the tensor to a thread. It works when this returns, and lets go of the tensor at its end."""
    held, works = [tensor], threading.Event()

    def work() -> None:
        works.set()
        for _ in range(WORK):
            pass
        held.clear()

    threading.Thread(target=work, daemon=True).start()
    assert works.wait(60)
