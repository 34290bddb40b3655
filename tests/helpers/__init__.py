"""What the tests share: small data, models and configs, and ways to run them."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
