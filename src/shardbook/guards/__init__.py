"""What is refused because it would train something else than the plain model."""
