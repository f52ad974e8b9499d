"""Splitting the computation itself: tensor, pipeline and 3D parallelism beside ZeRO."""
