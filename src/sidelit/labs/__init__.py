"""Labs: literate Python that is a page, and a notebook for students and for teachers."""
