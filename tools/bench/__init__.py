"""How fast both halves are: each figure is a ratio against what a user would run instead, measured in turn in one run.

`works` says what a figure is and how it is judged, `redis_works` and `postgres_works` are the tables of what is
measured, `report` writes the results. Absolute times are kept in the raw output alone: they say more about the machine.
"""
