"""The one way in which a check says no."""

from __future__ import annotations


class Refused(Exception):
    """Megatron-LM, the launch script or a rule of launching refuses the configuration."""
