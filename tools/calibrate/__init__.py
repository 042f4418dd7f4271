"""The step model fitted to a real engine, and its predictions held against that engine."""
