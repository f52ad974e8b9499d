"""Functions for the training loop: micro-batches, clipping, optimizer steps and state."""
