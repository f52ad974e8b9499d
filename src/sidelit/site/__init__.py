"""Pages: what they say, in which language, where they lead, and how they are written."""
