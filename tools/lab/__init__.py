"""The lost-update laboratory: what a stall costs with no fence, a fence at the write alone, and a claim before the read.

`python -m lab` (or `make lab`) runs every experiment on throw-away servers; README.md has what came out. Not a test suite:
it measures. Its one promise is checked all the same: claim first loses nothing, and every loss has its explanation.
"""
