"""What a chip's memory holds, by term, and when it holds most."""
