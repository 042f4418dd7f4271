"""Which flags each vLLM version takes, asked of the version's own argument parser."""
