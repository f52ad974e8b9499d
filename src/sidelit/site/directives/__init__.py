"""What may stand between `:::` and `:::` on a page: one module for each, or for a few alike."""
