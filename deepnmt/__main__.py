"""The command `deepnmt`, also as `python -m deepnmt`."""

import sys


def main() -> int:
    try:
        from deepnmt import cli  # here, because Ctrl-C may come during the imports

        return cli.main()
    except KeyboardInterrupt:
        print("deepnmt: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
