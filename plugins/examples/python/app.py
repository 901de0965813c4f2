"""Two tools in Python: plain functions of the world in `wit/`."""

import re

import wit_world
from componentize_py_types import Err
from wit_world import Counted


class WitWorld(wit_world.WitWorld):
    def count(self, text: str) -> Counted:
        words = text.split()
        return Counted(len(words), len(text.splitlines()), max(words, key=len, default=""))

    def find(self, text: str, pattern: str) -> list[str]:
        try:
            return [match.group(0) for match in re.finditer(pattern, text)]
        except re.error as error:
            raise Err(f"not a regular expression: {error}")
