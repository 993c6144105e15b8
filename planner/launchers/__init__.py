"""Plans to launch files and back; one file a launcher."""
