"""What is given, what is decided, what came out. No arithmetic beyond checks and units."""
