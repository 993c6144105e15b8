"""What a plan is in the words of Megatron-Bridge."""
