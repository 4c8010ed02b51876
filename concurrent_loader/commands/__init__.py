"""The command line's subcommands, one group a file; `concurrent_loader.cli` puts them together."""
