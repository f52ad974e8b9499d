"""The bytes that a plan predicts, and the bytes that a step takes."""
