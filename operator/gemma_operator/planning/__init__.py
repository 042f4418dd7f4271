"""Measuring what an engine carries, and sizing a fleet by it. `sweep_run` asks a server, `results` and `plot` use files; the rest is pure."""
