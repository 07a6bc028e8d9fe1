"""Where people stand: the command line."""
