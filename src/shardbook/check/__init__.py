"""`python -m shardbook.check`: a few steps of a program of yours, watched."""
