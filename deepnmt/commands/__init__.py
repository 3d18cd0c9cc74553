"""One file per command of the command line; see `deepnmt/cli.py`."""
