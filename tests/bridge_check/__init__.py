"""Compares what a plan's Megatron-Bridge files build with what its Megatron-LM files build, on a CPU.

`python -m tests.bridge_check --lm DIR --bridge DIR ...`, in the environment of `tests/setup_bridge.sh`.
"""
