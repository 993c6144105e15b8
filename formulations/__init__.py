"""Mathematical formulations, one a file; the mathematics stands whole in each module's docstring."""

import sys
from importlib.util import find_spec


def _import_pulp_without_highspy() -> None:
    """Import PuLP so that it leaves HiGHS's own interface alone, where that is installed.

    PuLP 3.3 loads its library for all others to see. The HiGHS of OR-Tools 9.15, which solves our programs,
    would then run half in its own code and half in that of the other version, and the process dies.
    """
    name = "highspy"
    if "pulp" in sys.modules or find_spec(name) is None:
        return
    known = sys.modules.get(name)
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        import pulp  # noqa: F401
    finally:
        del sys.modules[name]
        if known is not None:
            sys.modules[name] = known


_import_pulp_without_highspy()
