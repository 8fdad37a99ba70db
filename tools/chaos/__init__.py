"""Histories of real servers under faults, and the checker that judges them.

`worker` records what each client asked and was answered, `proxy` cuts connections between them and the servers, `world` runs
servers, workers and faults, `models` says what a lock and a fenced resource may answer, `linearizability` decides whether
one order of the calls explains every answer. `python -m chaos` is `make chaos`.
"""
