"""`python -m demo`: the story of workers A and B: `make demo`."""
