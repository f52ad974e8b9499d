r"""# Shardbook

> ZeRO sharded training, written to be read.

Each module of this package is a chapter. In reading order: [what ranks send each
other](collectives.py), [how it is counted](ledger.py), [how parameters become one
vector](partition.py), [how a vector is shared out](flat.py), [what a unit
does](unit.py), [when it does it](layer.py), [in which order](schedule.py), [how the
ranks make sure they agree](check.py), [how units form a model](model.py), [how the
result is saved](state.py), [a model](gpt.py), and [its training](train.py).
"""

# The press and its site live in the same distribution and need no torch. So torch is
# not required at installation, and a reader who imports the library without it learns
# what to install.
try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "shardbook needs PyTorch, which is not installed: "
        "pip install 'shardbook[train]'",
        name="torch",
    ) from error

from shardbook.accumulate import no_sync
from shardbook.check import Disagreement
from shardbook.clip import clip_grad_norm_, clip_grad_value_
from shardbook.model import Zero3Layer, Zero3Sequential, shard
from shardbook.policy import Policy
from shardbook.prefetch import Prefetch

__all__ = [
    "Disagreement",
    "Policy",
    "Prefetch",
    "Zero3Layer",
    "Zero3Sequential",
    "__version__",
    "clip_grad_norm_",
    "clip_grad_value_",
    "no_sync",
    "shard",
]
__version__ = "0.1.0"
