"""The command line: one file a command. `compare.cli.app` joins them."""
