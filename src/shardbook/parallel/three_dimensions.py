r"""# Three dimensions of parallelism

> ZeRO, tensor and pipeline parallelism in one job, in which each rank has a place on three axes.

The three ways to split a model can be combined. Number the ranks by three coordinates:
the stage of the pipeline, the part of the data, and the part of each matrix. Take eight
ranks, with two parts on each axis. Rank 5 has the coordinates $(1, 0, 1)$: the second
half of the layers, the first half of the data, the second half of each matrix.

The product of the three sizes is the number of ranks. Reports of a model with a trillion
parameters name 4,096 GPUs: 8 parts of each matrix, 64 pipeline stages, and 8 parts of
the data.

A group of ranks with two equal coordinates works along the third axis. Rank 5 adds up
its terms with rank 4, exchanges parameters and gradients by ZeRO with rank 7, and
receives activations from rank 1. With ZeRO-3 each rank stores $1/N$ of the model
states, however the $N$ ranks are arranged.

**Which dimension on which wires?** The answer follows from what each of them sends, and
from what waits for it:

| dimension | sends | hides behind computation | wires |
|---|---|---|---|
| tensor | activations, four times a block | no | the fastest, inside one machine |
| data, by ZeRO-3 | parameters and gradients of each layer | yes, if gathered early | fast |
| data, repeated | gradients once a step | yes | slower |
| pipeline | activations, once a cut | yes, except in the bubble | the slowest, between machines |

So neighbouring ranks share a matrix, and the stages of the pipeline are furthest apart.
A mesh whose *last* dimension is the tensor dimension has this order. Its neighbouring
ranks differ in the last coordinate first, and `torchrun` gives the ranks of one machine
consecutive numbers.

**ZeRO beside a pipeline.** Each micro-batch of a stage is a forward and a backward
pass, and stage 3 gathers the parameters for each of them: $2m$ gathers of every unit in
a step. In stage 1 the gradients of the micro-batches [are added up
first](accumulate.py) and averaged once a step. [A forward pass
gathers](zero1.py#Zero1.expire) only until the first backward pass of the step: from
then on gradients wait, and the whole parameters stay. So under 1F1B a unit of the last
stage is gathered once, and one of the stage before it twice. A pipeline is therefore
usually combined with stage 1. This chapter takes the stage as an argument, and the
trained model is the same.

A fourth dimension could split the sequence, and a fifth one the experts of a mixture.
[Optimus](bib:xu2021optimus) cuts the tensor dimension differently. It arranges the
ranks of a group as a square and cuts activations and matrices both ways, so that no
rank has whole activations either.

```sh
torchrun --standalone --nproc-per-node 8 -m shardbook.parallel three
```

:figure: three_dimensions
:notation $N$: `mesh.size()`, the number of all ranks
:notation $m$: `pieces`, the number of micro-batches
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

from torch.distributed.device_mesh import DeviceMesh

from shardbook.models import gpt
from shardbook.parallel.pipeline_parallel import Stage, cut
from shardbook.parallel.tensor_parallel import split_block
from shardbook.training.accumulate import no_sync
from shardbook.zero.model import shard

__all__ = ["AXES", "stage_of"]

AXES = ("pipeline", "data", "tensor")


def stage_of(
    config: gpt.Config, mesh: DeviceMesh, *, sequences: int, stage: int = 1
) -> Stage:
    """This rank's part of a GPT, split along all three axes.

    First the chain is cut, so that no rank computes on the layers of others. Then each
    block is split, and its remaining parameters are this rank's own. ZeRO comes last,
    and shards them over the ranks that hold the same ones.

    :param config: the whole model's shape
    :param mesh: three dimensions with the names of `AXES`
    :param sequences: the number of sequences in one micro-batch
    :param stage: ZeRO's stage along the data dimension
    :returns: its layers are sharded, and its parameters are for an optimizer
    """
    layers = list(gpt.GPT(config))
    group = mesh["tensor"].get_group()
    mine = cut(layers, mesh["pipeline"].get_local_rank(), mesh["pipeline"].size())
    for layer in mine:
        if isinstance(layer, gpt.Block):
            split_block(layer, group)
    shard(mine, stage=stage, mesh=mesh["data"])
    return Stage(
        mine,
        (sequences, config.context, config.width),
        gpt.loss,
        mesh["pipeline"].get_group(),
        alone=partial(no_sync, mine) if stage < 3 else nullcontext,
    )
