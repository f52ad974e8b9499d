"""The bytes that a plan predicts, and those that a step takes."""
