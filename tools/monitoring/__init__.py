"""Rules, alerts and the dashboard as code: `python -m tools.monitoring` writes what the chart ships (pure but for that)."""
