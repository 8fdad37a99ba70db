"""The suite on many servers: `make test-matrix` (`run`), its servers (`cells`, `debian.json`) and the README's table.

A cell is one server: the Redis cells run with one PostgreSQL beside them, the PostgreSQL cells with one Redis. What was
seen last is in `results.json`. Not run by pytest; `test_matrix.py` checks what it says.
"""
