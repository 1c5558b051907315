"""For every test: decisions of the user of this machine are neither read nor written, and nothing is fetched."""

import os

os.environ["BESTOF_STORE"] = "off"
os.environ["BESTOF_STORE_WAIT"] = "60"  # a loaded machine must not decide what a test finds
os.environ.pop("BESTOF_FORCE", None)
os.environ["HF_HUB_OFFLINE"] = "1"
