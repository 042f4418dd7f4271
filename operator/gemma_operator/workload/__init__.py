"""Workloads: who asks when, and for what. Needs numpy (the extra `simulator`); the running operator never imports it."""
