"""What a plan and its network are in the words of Megatron-LM's command line."""
