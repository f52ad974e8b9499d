"""The parameters of a unit: flat vectors, masters, gradients, dtypes."""
