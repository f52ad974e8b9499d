"""Scripts to check: each is right as it stands, and wrong where a line ends with what is written instead.

    clip_grad_norm_(model, 1.0)  ## torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

`right` takes what stands before the mark, `wrong` what stands behind it. So a script with a fault and without
differ in these lines only. A mark with nothing behind it leaves the line out.
"""

from __future__ import annotations

from textwrap import dedent

MARK = "  ## "

HEAD = """\
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from shardbook import *

if not dist.is_initialized():
    dist.init_process_group("gloo")
rank = dist.get_rank()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear, self.drop = nn.LayerNorm(8), nn.Linear(8, 8), nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(self.linear(self.norm(x)))


def batch():
    return torch.randn(4, 8), torch.randint(8, (4,))


def build(blocks=3):
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(blocks)), nn.Linear(8, 8))
    return model


"""


LOOP = """\
for step in range(100):
    x, y = batch()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def script(text: str) -> str:
    """A script, behind what all scripts have in common."""
    return HEAD + dedent(text).lstrip("\n").replace("LOOP\n", LOOP)


def right(text: str) -> str:
    """The script as it should be."""
    return "".join(line.partition(MARK)[0].rstrip() + "\n" for line in text.splitlines())


def wrong(text: str) -> str:
    """The script with its fault."""
    return "".join(_wrong(line) + "\n" for line in text.splitlines())


def _wrong(line: str) -> str:
    before, mark, after = line.partition(MARK)
    indent = before[: len(before) - len(before.lstrip())]
    return indent + after if mark else line


def line_of(text: str, part: str) -> int:
    """Where the only line with this part stands."""
    (number,) = [number for number, line in enumerate(text.splitlines(), 1) if part in line]
    return number


# Faults: the script, the weight and the kind of what is found, and a part of the line that is named.
FAULTS: dict[str, tuple[str, str, str, str | None]] = {
    "torch's clipping": (
        """
        model = shard(build(), units=Block)
        torch.manual_seed(rank)
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(100):
            x, y = batch()
            F.cross_entropy(model(x), y).backward()
            clip_grad_norm_(model, 1.0)  ## nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        """,
        *("error", "local-norm", "clip_grad_norm_("),
    ),
    "a total norm": (
        """
        model = shard(build(), stage=2, units=Block)
        torch.manual_seed(rank)
        ps = [*model.parameters()]
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(100):
            x, y = batch()
            F.cross_entropy(model(x), y).backward()
            norm = clip_grad_norm_(model, float("inf"))  ## norm = nn.utils.get_total_norm(p.grad for p in ps)
            optimizer.step()
            optimizer.zero_grad()
        """,
        *("error", "local-norm", "norm ="),
    ),
    "a norm by hand": (
        """
        model = shard(build(), units=Block)
        torch.manual_seed(rank)
        ps = [*model.parameters()]
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(100):
            x, y = batch()
            F.cross_entropy(model(x), y).backward()
            norm = clip_grad_norm_(model, float("inf"))  ## norm = sum(p.grad.detach().norm() for p in ps)
            optimizer.step()
            optimizer.zero_grad()
        """,
        *("warning", "gradient-norm", "norm ="),
    ),
    "torch's scaler": (
        """
        policy = Policy(param_dtype=torch.float16, output_dtype=torch.float32)
        model = shard(build(), units=Block, policy=policy)
        torch.manual_seed(rank)
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = ShardedGradScaler("cpu", 8.0)  ## scaler = torch.amp.GradScaler("cpu", 8.0)
        for step in range(100):
            x, y = batch()
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        """,
        *("error", "local-scaler", "scaler.step"),
    ),
    "losses that are not divided": (
        """
        model = shard(build(), units=Block)
        torch.manual_seed(rank)
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(100):
            for last in (False, True):
                x, y = batch()
                loss = F.cross_entropy(model(x), y) / 2  ## loss = F.cross_entropy(model(x), y)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
        *("warning", "undivided", "loss.backward()"),
    ),
    "the same data on every rank": (
        """
        model = shard(build(), units=Block)
        torch.manual_seed(rank)  ## torch.manual_seed(0)
        optimizer = torch.optim.AdamW(model.parameters())
        LOOP
        """,
        *("error", "same-data", "model(x)"),
    ),
    "equal masks on every rank": (
        """
        model = shard(build(), units=Block)
        torch.manual_seed(rank)  ## torch.manual_seed(0)
        optimizer = torch.optim.AdamW(model.parameters())
        data = torch.Generator().manual_seed(rank)
        for step in range(100):
            x, y = torch.randn(4, 8, generator=data), torch.zeros(4, dtype=torch.int64)
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
        *("note", "same-masks", "model(x)"),
    ),
    "other first values": (
        """
        model = build()
        nn.init.normal_(model[0].linear.weight)  ## nn.init.constant_(model[0].linear.weight, rank)
        shard(model, units=Block, synchronize=False)
        torch.manual_seed(rank)
        optimizer = torch.optim.AdamW(model.parameters())
        LOOP
        """,
        *("error", "first-values", "shard(model"),
    ),
    "eval mode": (
        """
        model = shard(build(), units=Block)
        torch.manual_seed(rank)
        optimizer = torch.optim.AdamW(model.parameters())
        model.train()  ## model.eval()
        LOOP
        """,
        *("warning", "evaluating", "model(x)"),
    ),
    "an optimizer of another model": (
        """
        from copy import deepcopy
        model = build()
        trained = model  ## trained = deepcopy(model)
        optimizer = torch.optim.AdamW(trained.parameters())
        shard(model, units=Block)
        torch.manual_seed(rank)
        LOOP
        """,
        *("error", "foreign-optimizer", "optimizer.step()"),
    ),
    "a head that each rank trains alone": (
        """
        model = build()
        shard(model, units=Block)  ## shard(model[:3], units=Block)
        torch.manual_seed(rank)
        optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model[:3], model[3])]
        for step in range(100):
            x, y = batch()
            h = model(x)  ## h = model[3](model[:3](x))
            F.cross_entropy(h, y).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        """,
        *("error", "alone", "optimizer.step()"),
    ),
    "a parameter that no optimizer takes": (
        """
        model = shard(build(), units=Block)
        torch.manual_seed(rank)
        trained = model  ## trained = model[:3]
        optimizer = torch.optim.AdamW(trained.parameters())
        LOOP
        """,
        *("warning", "untrained", None),
    ),
    "a parameter that nobody uses": (
        """
        model = build()
        model[1].spare = None  ## model[1].spare = nn.Linear(8, 8)
        shard(model, units=Block)
        torch.manual_seed(rank)
        optimizer = torch.optim.AdamW(model.parameters())
        LOOP
        """,
        *("warning", "unused", None),
    ),
    "zero_grad in the wrong place": (
        """
        model = shard(build(), units=Block)
        torch.manual_seed(rank)
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(100):
            x, y = batch()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            pass  ## optimizer.zero_grad()
            optimizer.step()
        """,
        *("error", "no-gradients", "optimizer.step()"),
    ),
    "a backward pass to the parameters": (
        """
        model = shard(build(), stage=0, units=Block)
        torch.manual_seed(rank)
        optimizer = torch.optim.AdamW(model.parameters())
        inputs = None  ## inputs = [*model.parameters()]
        for step in range(100):
            x, y = batch()
            F.cross_entropy(model(x), y).backward(inputs=inputs)
            optimizer.step()
            optimizer.zero_grad()
        """,
        *("error", "no-gradients", "optimizer.step()"),
    ),
    "a loss times zero": (
        """
        model = shard(build(), units=Block)
        torch.manual_seed(rank)
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(100):
            x, y = batch()
            (F.cross_entropy(model(x), y) * 1).backward()  ## (F.cross_entropy(model(x), y) * 0).backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
        *("error", "zero-gradients", "optimizer.step()"),
    ),
    "a loss that is NaN": (
        """
        model = shard(build(), units=Block)
        torch.manual_seed(rank)
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(100):
            x, y = batch()
            loss = F.cross_entropy(model(x), y)  ## loss = F.cross_entropy(model(x), y) * float("nan")
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
        *("error", "not-finite", "loss.backward()"),
    ),
    "groups by shape": (
        """
        model = build()
        model = model  ## model = shard(model, units=Block)
        matrices = [p for p in model.parameters() if p.dim() > 1]
        vectors = [p for p in model.parameters() if not any(p is m for m in matrices)]
        model = shard(model, units=Block)  ## pass
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW([group for group in groups if group["params"]])
        torch.manual_seed(rank)
        LOOP
        """,
        *("warning", "slice-shape", "matrices ="),
    ),
    "a count of parameters": (
        """
        model = build()
        count = sum(p.numel() for p in model.parameters())  ## pass
        model = shard(model, units=Block)
        count = count  ## count = sum(p.numel() for p in model.parameters())
        optimizer = torch.optim.AdamW(model.parameters())
        torch.manual_seed(rank)
        LOOP
        """,
        *("warning", "slice-shape", "p.numel()"),
    ),
    "the norm of a slice": (
        """
        model = shard(build(), units=Block)
        optimizer = torch.optim.AdamW(model.parameters())
        torch.manual_seed(rank)
        with whole(model), torch.no_grad():  ## with torch.no_grad():
            norm = model[0].linear.weight.norm()
        LOOP
        """,
        *("warning", "slice-norm", "norm = "),
    ),
    "a write that is lost": (
        """
        model = shard(build(), units=Block)
        optimizer = torch.optim.AdamW(model.parameters())
        torch.manual_seed(rank)
        with whole(model):
            weight = model[0].linear.weight.data.clone()  ## model[0].linear.weight.data.zero_()
        LOOP
        """,
        *("error", "lost-write", "with whole"),
    ),
    "a gradient that is read too early": (
        """
        model = shard(build(), units=Block)
        torch.manual_seed(rank)
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(100):
            with no_sync(model):
                (F.cross_entropy(model(batch()[0]), batch()[1]) / 2).backward()
            seen = None  ## seen = [p.grad for p in model.parameters()]
            (F.cross_entropy(model(batch()[0]), batch()[1]) / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
        *("warning", "early-gradient", "seen ="),
    ),
    "a rank that leaves out a step": (
        """
        model = shard(build(), units=Block)
        torch.manual_seed(rank)
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(100):
            x, y = batch()
            F.cross_entropy(model(x), y).backward()
            if step != 1 or rank < 2:  ## if step != 1 or rank == 0:
                optimizer.step()
            optimizer.zero_grad()
        """,
        *("error", "uneven-steps", "optimizer.step()"),
    ),
    "another learning rate on each rank": (
        """
        model = shard(build(), units=Block)
        torch.manual_seed(rank)
        rate = 0.1  ## rate = 0.1 + rank
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
        LOOP
        """,
        *("error", "uneven-rates", "optimizer.step()"),
    ),
    "buffers of each rank's own": (
        """
        model = build()
        model.append(nn.LayerNorm(8))  ## model.append(nn.BatchNorm1d(8))
        model = shard(model, units=Block)
        torch.manual_seed(rank)
        optimizer = torch.optim.AdamW(model.parameters())
        LOOP
        """,
        *("note", "buffers", None),
    ),
    "two names of one parameter": (
        """
        model = build()
        model.append(nn.Linear(8, 8))
        model[4].weight = nn.Parameter(torch.eye(8))  ## model[4].weight = model[3].weight
        model = shard(model, units=Block)
        torch.manual_seed(rank)
        optimizer = torch.optim.AdamW(model.parameters())
        LOOP
        """,
        *("note", "tied", None),
    ),
}
FAULTS = {name: (script(text), *rest) for name, (text, *rest) in FAULTS.items()}  # type: ignore[misc]

# Programs in which nothing is wrong, each for one part of the library.
CLEAN = {
    **{
        f"stage {stage}": f"""
        model = shard(build(), units=Block, stage={stage})
        torch.manual_seed(rank)
        optimizer = torch.optim.AdamW(model.parameters())
        LOOP
        """
        for stage in (0, 1, 2, 3)
    },
    "checkpoints": """
        model = build()
        checkpoint_module(model, units=Block)
        shard(model, units=Block)
        torch.manual_seed(rank)
        optimizer = torch.optim.AdamW(model.parameters())
        LOOP
        """,
    "torch's reentrant checkpoint": """
        from torch.utils.checkpoint import checkpoint as other
        model = shard(build(), units=Block)
        torch.manual_seed(rank)
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(100):
            x, y = batch()
            x.requires_grad_()
            F.cross_entropy(other(model, x, use_reentrant=True), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
    **{
        f"accumulation in stage {stage}": f"""
        model = shard(build(), units=Block, stage={stage})
        torch.manual_seed(rank)
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(100):
            with no_sync(model):
                for _ in range(2):
                    x, y = batch()
                    (F.cross_entropy(model(x), y) / 3).backward()
            x, y = batch()
            (F.cross_entropy(model(x), y) / 3).backward()
            optimizer.step()
            optimizer.zero_grad()
        """
        for stage in (0, 1, 3)
    },
    "offload in 16 bits": """
        policy = Policy(param_dtype=torch.bfloat16, output_dtype=torch.float32, offload=True)
        model = shard(build(), units=Block, policy=policy)
        torch.manual_seed(rank)
        optimizer = torch.optim.AdamW(model.parameters())
        LOOP
        """,
    **{
        f"frozen parameters in stage {stage}": f"""
        model = build()
        model[1].requires_grad_(False)
        policy = Policy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
        shard(model, units=Block, stage={stage}, policy=policy)
        torch.manual_seed(rank)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
        LOOP
        """
        for stage in (2, 3)
    },
    "a scaler whose steps overflow": """
        policy = Policy(param_dtype=torch.float16, output_dtype=torch.float32)
        model = shard(build(), units=Block, policy=policy)
        torch.manual_seed(rank)
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = ShardedGradScaler(init_scale=2.0**40)
        for step in range(100):
            x, y = batch()
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            scaler.unscale_(optimizer)
            clip_grad_norm_(model, 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        """,
    "steps in the backward pass": """
        from functools import partial
        model = shard(build(), units=Block)
        torch.manual_seed(rank)
        step_in_backward(model, partial(torch.optim.AdamW, lr=1e-3))
        for step in range(100):
            x, y = batch()
            F.cross_entropy(model(x), y).backward()
        """,
    "two networks": """
        generator, critic = (shard(build(), units=Block) for _ in range(2))
        torch.manual_seed(rank)
        optimizers = [torch.optim.AdamW(m.parameters()) for m in (generator, critic)]
        for step in range(100):
            x, _ = batch()
            critic(x).mean().backward()
            (-critic(generator(x).detach())).mean().backward()
            optimizers[1].step()
            optimizers[1].zero_grad()
            critic(generator(x)).mean().backward()
            optimizers[0].step()
            optimizers[0].zero_grad()
            optimizers[1].zero_grad()
        """,
    "a warm-up, an evaluation and an average of the weights": """
        model = shard(build(), units=Block)
        torch.manual_seed(rank)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 10))
        average = [p.detach().clone() for p in model.parameters()]
        for step in range(100):
            x, y = batch()
            F.cross_entropy(model(x), y).backward()
            clip_grad_value_(model, 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=False)
            with torch.no_grad():
                for old, p in zip(average, model.parameters()):
                    old.lerp_(p.detach(), 0.1)
                model.eval()
                model(x)
                model.train()
            with whole(model):
                norm = model[0].linear.weight.norm()
        """,
    "an optimizer with a closure": """
        model = shard(build(), units=Block)
        torch.manual_seed(rank)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        def closure():
            x, y = batch()
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss
        for step in range(100):
            optimizer.step(closure)
        """,
    "a second model that is averaged by hand": """
        model, other = shard(build(), units=Block), build()
        torch.manual_seed(rank)
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, other)]
        for step in range(100):
            x, y = batch()
            F.cross_entropy(model(other(x)), y).backward()
            for p in other.parameters():
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        """,
    "a second model of each rank's own": """
        model = shard(build(), units=Block)
        torch.manual_seed(rank)
        other = nn.Linear(8, 8)
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, other)]
        for step in range(100):
            x, y = batch()
            F.cross_entropy(model(other(x)), y).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        """,
    "unequal numbers of batches": """
        model = shard(build(), units=Block)
        torch.manual_seed(rank)
        optimizer = torch.optim.AdamW(model.parameters())
        for (x, y), weight in join([batch() for _ in range(2 + rank)]):
            (F.cross_entropy(model(x), y) * weight).backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
    "a mesh of two dimensions": """
        mesh = dist.init_device_mesh("cpu", (2, 1))
        model = shard(build(), units=Block, mesh=mesh)
        torch.manual_seed(rank)
        optimizer = torch.optim.AdamW(model.parameters())
        LOOP
        """,
    "zero for what is not used": """
        model = build()
        model[1].spare = nn.Linear(8, 8)
        shard(model, units=Block, unused="zero")
        torch.manual_seed(rank)
        optimizer = torch.optim.AdamW(model.parameters())
        LOOP
        """,
    "a fine-tuning that fixes the norms": """
        model = build()
        model.append(nn.BatchNorm1d(8))
        shard(model, units=Block)
        model[4].eval()
        torch.manual_seed(rank)
        optimizer = torch.optim.AdamW(model.parameters())
        LOOP
        """,
}
CLEAN = {name: script(text) for name, text in CLEAN.items()}
