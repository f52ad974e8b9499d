"""Names of sections that last, and the ledger that keeps them."""
