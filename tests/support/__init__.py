"""Helpers that several tiers share."""
