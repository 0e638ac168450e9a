"""A job with a secret: the page's key is made out of it, the same on every node, and is not
the secret itself."""
from __future__ import annotations

from urllib.parse import urlparse

from watched import get, running, start, stop, url


def test_the_key_is_the_jobs_and_not_the_secret(tmp_path):
    token = "0123456789abcdef0123456789abcdef"
    keys = []
    for i in range(2):
        where = tmp_path / str(i)
        where.mkdir()
        j = start(where, "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", page="0.0.0.0:0",
                  env={"MUSTER_TOKEN": token})
        try:
            running(j)
            link = url(j)
            keys.append(link.partition("?key=")[2])
            port = urlparse(link).port
            host = {"Host": "elsewhere"}
            assert get(f"http://127.0.0.1:{port}/status.json?key={keys[-1]}", host)[0] == 200
            assert get(f"http://127.0.0.1:{port}/status.json?key={token}", host)[0] == 401
            code, _, text = get(f"http://127.0.0.1:{port}/status.json")
            assert code == 200 and token not in text
            assert token not in get(f"http://127.0.0.1:{port}/")[2]
        finally:
            (where / "end").touch()
            stop(j)
    assert len(keys[0]) == 64 and keys[0] == keys[1] and token not in keys[0]
