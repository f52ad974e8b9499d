"""`python -m shardbook.check`: a few steps of your program, with every check watching."""
