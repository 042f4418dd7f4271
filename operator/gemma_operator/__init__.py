"""Kubernetes operator that serves Gemma 4 with vLLM in SLO-separated pools."""

__version__ = "0.2.0"
