"""Builds the project's container images with Docker or buildah: `python3 -m tools.images --help`. Standard library only."""
