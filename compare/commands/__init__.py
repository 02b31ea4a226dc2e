"""The commands of the program, a file each; `compare.cli` puts them together."""
