"""Shows a launch directory to the real Megatron-LM, on a CPU, and reports what it makes of it.

`check_megatron_args.py` is the command; it runs in the environment of `tests/setup_megatron.sh`.
`expectation.py` runs in ours and says what should come out.
"""
