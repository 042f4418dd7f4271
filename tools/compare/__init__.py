"""Autoscalers compared on public traces."""
