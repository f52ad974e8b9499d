"""What a reader can move: a recorded run to step through, and a table of answers behind two sliders."""
