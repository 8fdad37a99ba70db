"""What schema tools make of a database with the extension: `python3 -m schema_tools`, run by `make test-schema-tools`.

Rails comes from Debian's packages, drizzle-kit from npm. Alembic is cheap, so `make test` tries it. Not a test of the
tools: each check is one that the manual states, and the manual names the versions that are tried here.
"""
