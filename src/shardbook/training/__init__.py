"""What a training loop calls between the passes: micro-batches, clipping, steps, states."""
