"""The commands of `hetplan`, one file each. With `planner/cli.py` the only code that writes to a screen."""
