"""`python -m benchmarks.net --selftest`: is the link of this machine what it says?"""

import argparse
import sys

from benchmarks.net.selftest import selftest
from shared.errors import IsthmusError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.net", description=__doc__)
    parser.add_argument(
        "--selftest", action="store_true", required=True, help="shape links and measure them (2 minutes)"
    )
    parser.parse_args()
    try:
        selftest()
    except IsthmusError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
