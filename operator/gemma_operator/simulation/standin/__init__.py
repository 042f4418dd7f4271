"""A stand-in for one vLLM engine, for clusters without GPUs: command line, HTTP API and /metrics over the step model.

    python -m gemma_operator.simulation.standin --model google/gemma-4-E4B-it --port 8000

takes the flags of the vLLM version that it pretends to be. Environment:

    STANDIN_VERSION          vLLM version, default 0.32.0
    STANDIN_STARTUP_SECONDS  time until the port opens, default 2
    STANDIN_BATCHED_ENCODER  1 (default): frames of a step are encoded together; 0: one after the other
    STANDIN_SPEED            speed of the hardware against the measured GPU, default 1; 0.5 takes twice as long

Nothing is random: the same requests at the same times give the same answers and steps.
"""
