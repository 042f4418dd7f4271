"""What the autoscaler does on a real node, scene by scene: load, what came of it, and a picture."""
