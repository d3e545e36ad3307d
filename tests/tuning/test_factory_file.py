"""The file of a factory is read before anything is run."""

from pathlib import Path

import pytest

from corewise.errors import UserError
from corewise.tuning.factory_file import list_imports, require_factory
from corewise.tuning.question import build_question

FACTORY = "import torch\n\ndef make(batch, mode):\n    raise SystemExit('never run')\n\ndef _helper():\n    pass\n"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "my.py"
    path.write_text(text)
    return path


def test_a_misspelt_factory_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    path = write(tmp_path, FACTORY)
    with pytest.raises(UserError, match=r"my.py:mkae: the file defines no function 'mkae'; did you mean 'make'\?"):
        build_question(f"{path}:mkae")
    build_question(f"{path}:make")


def test_a_name_unlike_any_other_lists_the_public_functions(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"known: make$"):
        require_factory(write(tmp_path, FACTORY), "transformer")


@pytest.mark.parametrize(
    "text",
    [
        "from models import make\n",
        "import models as make\n",
        "make = lambda batch, mode: None\n",
        "class make: ...\n",
        "try:\n    import fast\nexcept ImportError:\n    def make(batch, mode): ...\n",
        "if True:\n    from models import make\n",
        "from models import *\n",
        "globals()['make'] = print\n",
        "def __getattr__(name): ...\n",
    ],
)
def test_every_way_to_define_a_factory_is_accepted(tmp_path: Path, text: str) -> None:
    require_factory(write(tmp_path, text), "make")


def test_a_syntax_error_is_reported_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"my.py, line 2: "):
        require_factory(write(tmp_path, "import torch\ndef make(batch:\n"), "make")


def test_imports_are_those_of_installed_packages(tmp_path: Path) -> None:
    (tmp_path / "helpers.py").touch()
    (tmp_path / "parts").mkdir()
    text = """
import torch.nn as nn, helpers
from transformers import BertConfig, BertModel
from parts.head import Head
from . import sibling

def make(batch, mode):
    from timm.models import create_model
"""
    imports = list_imports(write(tmp_path, text))
    assert imports == ("torch.nn", "transformers:BertConfig", "transformers:BertModel", "timm.models:create_model")


def test_a_file_that_cannot_be_parsed_imports_nothing(tmp_path: Path) -> None:
    assert list_imports(write(tmp_path, "import (")) == ()
