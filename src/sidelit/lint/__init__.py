"""What is wrong with a source or a translation, and can be said without a build."""
