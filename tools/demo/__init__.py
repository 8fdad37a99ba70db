"""`python -m demo`: the story of workers A and B, told by `make demo`."""
