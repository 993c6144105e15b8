"""The files of a launch directory that start it, each under one system, and its page."""
