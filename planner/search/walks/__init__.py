"""Bounds on all orders of a part of the space by shortest walks from stage to stage."""
