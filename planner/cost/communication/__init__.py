"""What ranks send to one another: counts, bytes and seconds."""
