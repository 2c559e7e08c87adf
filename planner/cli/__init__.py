"""The command line: options declared once, commands as short chains of calls."""
