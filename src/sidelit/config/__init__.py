"""What a site is made of, read from its TOML files."""
