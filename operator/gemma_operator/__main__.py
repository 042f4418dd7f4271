"""`python -P -m gemma_operator` is `gemma-operator`."""

from gemma_operator.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
