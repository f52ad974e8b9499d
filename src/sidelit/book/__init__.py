"""The whole site as one PDF in each of its languages."""
