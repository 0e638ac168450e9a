from pathlib import Path

import pytest

from conform import Bench, Zygote


@pytest.fixture(scope="session")
def zygote(tmp_path_factory):
    z = Zygote(tmp_path_factory.mktemp("zygote"))
    yield z
    z.close()


@pytest.fixture
def bench(zygote, tmp_path: Path):
    b = Bench(zygote, tmp_path)
    yield b
    b.clean()
