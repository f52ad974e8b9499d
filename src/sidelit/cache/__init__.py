"""Work of earlier builds, and what is kept out of memory."""
