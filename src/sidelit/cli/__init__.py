"""The command line: what may be given, what each command does, and a first configuration."""
