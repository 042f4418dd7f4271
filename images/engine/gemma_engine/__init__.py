"""What GemmaServing adds to vLLM by its plugin interfaces, without a fork. Importing this package imports nothing else."""

__version__ = "0.1.0"
