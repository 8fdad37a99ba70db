"""Fuzzers of the live servers: each is a module with `run`, and a program for long runs (see README.md)."""
