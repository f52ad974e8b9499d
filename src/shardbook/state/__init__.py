"""Saving and loading: checkpoints of a run, folders of a model, and files of other programs."""
