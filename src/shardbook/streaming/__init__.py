"""Activation checkpoints on other ranks or on the host, and models larger than their device."""
