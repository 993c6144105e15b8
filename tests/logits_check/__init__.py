"""Does the network that launch files build compute what its publisher's code computes? Test code alone.

Runs in the environment of `tests/setup_bridge.sh`, which has both Megatron-LM and transformers.
"""
