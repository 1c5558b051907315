"""For every test: decisions of the user of this machine are neither read nor written."""

import os

os.environ["BESTOF_STORE"] = "off"
os.environ.pop("BESTOF_FORCE", None)
