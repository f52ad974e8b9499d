"""Other forms of a site: an archive, a PDF, slides, cards, notebooks, and its older versions."""
