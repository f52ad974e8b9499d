#!/usr/bin/env bash
# Train on several machines. Start this on each of them, with the same words:
#
#   examples/torchrun.sh FIRST MACHINES RANKS [OPTION ...]
#
#   FIRST      name or address of the machine where all of them meet; it is one of them
#   MACHINES   how many there are
#   RANKS      processes on each machine: its GPUs, or less than its cores
#   OPTION     of shardbook.train, such as --steps 1000 --data /shared/text
#
# Each machine has a copy of the model, which its ranks share. All machines must see the folder
# CHECKPOINTS, /shared/run by default. The same words, started once more, go on from there.
set -euo pipefail

if (($# < 3)); then
    echo "usage: $0 FIRST MACHINES RANKS [OPTION ...]" >&2
    exit 2
fi
first=$1 machines=$2 ranks=$3
shift 3

# A run that was stopped saves itself before it ends. torchrun lets it for so many seconds.
export PET_SHUTDOWN_TIMEOUT="${PET_SHUTDOWN_TIMEOUT:-120}"

exec "${TORCHRUN:-torchrun}" \
    --nnodes "$machines" --nproc-per-node "$ranks" --max-restarts "${RESTARTS:-3}" \
    --rdzv-backend c10d --rdzv-endpoint "$first:${PORT:-29500}" --rdzv-id "${RUN:-shardbook}" \
    -m shardbook.train \
    --mesh "${machines}x${ranks}" \
    --checkpoints "${CHECKPOINTS:-/shared/run}" \
    "$@"
