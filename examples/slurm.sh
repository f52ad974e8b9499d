#!/usr/bin/env bash
# Train on several machines of a Slurm cluster:
#
#   sbatch examples/slurm.sh [OPTION ...]
#
# The options are those of shardbook.train. Before the time is up the run saves itself, and the job is
# queued once more. It goes on from its newest checkpoint until all steps are taken. After an error it
# stays away.
#
# To change: partition and account, the number of machines and GPUs, the time, and the folder. All
# machines must see the folder.
#SBATCH --job-name=shardbook
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --exclusive
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=shardbook-%j.log
# To this shell (B), 300 seconds before the end: a step, a save, and Slurm's own delay of a minute.
#SBATCH --signal=B:USR1@300
set -euo pipefail

ranks=${RANKS:-8}
checkpoints=${CHECKPOINTS:-/shared/$SLURM_JOB_ID}
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# Two jobs on one machine must not meet each other.
port=$((20000 + SLURM_JOB_ID % 10000))

# Without this line srun gives each task a single core.
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}
export OMP_NUM_THREADS=$((SRUN_CPUS_PER_TASK > ranks ? SRUN_CPUS_PER_TASK / ranks : 1))
# A run that was stopped saves itself before it ends. torchrun lets it for so many seconds.
export PET_SHUTDOWN_TIMEOUT=200

time_is_up=
# This goes to torchrun on every machine, and not to this shell.
trap 'time_is_up=yes; scancel --signal=TERM "$SLURM_JOB_ID"' USR1

# In the background, since a shell answers no signal while it waits for a program in the foreground.
srun --kill-on-bad-exit=0 \
    torchrun \
    --nnodes "$SLURM_NNODES" --nproc-per-node "$ranks" --max-restarts 3 \
    --rdzv-backend c10d --rdzv-endpoint "$first:$port" --rdzv-id "$SLURM_JOB_ID" \
    -m shardbook.train \
    --mesh "${SLURM_NNODES}x${ranks}" \
    --checkpoints "$checkpoints" --save-every 500 --save-in-background \
    --precision bf16 \
    "$@" &
run=$!

# The signal ends a wait, but not the run.
while kill -0 "$run" 2>/dev/null; do
    wait "$run" || true
done
code=0
wait "$run" || code=$?
if [[ -n $time_is_up && $code -ne 0 ]]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
