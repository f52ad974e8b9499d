"""Names in code and what they mean, found without running anything."""
