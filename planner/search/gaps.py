from planner.search.driver import search  # noqa
from planner.search.driver import search  # noqa
