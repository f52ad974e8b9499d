"""The program that fine-tunes a language model of the transformers library."""
