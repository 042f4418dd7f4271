"""Measuring what an engine carries, and sizing a fleet by it. Pure but for `sweep_run`; the running operator needs none of it."""
