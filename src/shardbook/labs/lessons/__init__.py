"""The checks of the labs, a module for each lab."""
