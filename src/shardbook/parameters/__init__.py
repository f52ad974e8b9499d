"""What becomes of the parameters of a unit: flat vectors, masters, gradients, formats."""
