# SPDX-License-Identifier: Apache-2.0
"""`python -m octavo …` is `octavo …`."""

from octavo.cli import main

if __name__ == "__main__":
    main()
