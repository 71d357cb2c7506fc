"""A reward asked over HTTP, from real servers on the loopback."""

import json
import math
import re
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from reward_trajectories import respond

from bapo_lightning.errors import InputError
from bapo_lightning.rewards import RemoteReward


@contextmanager
def server(answer):
    """Serve ``answer(request, headers) -> (status, body)``; gives the address and the list of requests."""
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append(content)
            status, body = answer(content, self.headers, len(requests))
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments):
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{running.server_port}/score", requests
    finally:
        running.shutdown()
        running.server_close()


def lengths(content, headers, number):
    return 200, {"rewards": [len(r["response"]) for r in content["responses"]]}


def test_batches_come_back_in_order():
    texts = ["x" * n for n in range(11)]
    with server(lengths) as (url, requests):
        values = RemoteReward(url, batch_size=3).values([respond(text) for text in texts])
    assert values == list(range(11))
    assert sorted(len(r["responses"]) for r in requests) == [2, 3, 3, 3]


def test_what_the_server_is_told():
    with server(lengths) as (url, requests):
        RemoteReward(url).values([respond("half \ud83d", num_tokens=3, answer="7", status="wrong")])
    assert requests[0]["responses"] == [
        {
            "response": "half ?",
            "answer": "7",
            "prompt": "2 + 2?",
            "prompt_id": "p",
            "num_tokens": 3,
            "finish_reason": "stop",
            "status": "wrong",
        }
    ]


def test_null_is_missing():
    with server(lambda *_: (200, {"rewards": [None, 2]})) as (url, _):
        first, second = RemoteReward(url).values([respond(), respond()])
    assert math.isnan(first)
    assert second == 2.0


def test_a_busy_server_is_asked_again():
    def busy_once(content, headers, number):
        return (503, {}) if number == 1 else lengths(content, headers, number)

    with server(busy_once) as (url, requests):
        assert RemoteReward(url).values([respond("four")]) == [4.0]
    assert len(requests) == 2


@pytest.mark.parametrize(
    ("reply", "times", "reason"),
    [
        ((503, {}), 2, "status 503|too many 503"),
        ((404, {"detail": "no such path"}), 1, "status 404: .*no such path"),
        ((200, b"<html>"), 1, "not {'rewards'"),
        ((200, {"rewards": [1, 2]}), 1, "2 rewards for 1 responses"),
        ((200, {"rewards": ["good"]}), 1, "not {'rewards'"),
        ((200, [1]), 1, "not {'rewards'"),
    ],
)
def test_what_cannot_be_had_is_missing_and_said(reply, times, reason, caplog):
    with server(lambda *_: reply) as (url, requests):
        (value,) = RemoteReward(url, retries=1).values([respond("four")])
    assert math.isnan(value)
    assert len(requests) == times
    (record,) = [r for r in caplog.records if "are missing" in r.getMessage()]
    assert re.search(reason, record.getMessage())


def test_a_server_that_is_down_costs_its_rewards_only(caplog):
    with server(lengths) as (url, _):
        pass
    assert math.isnan(RemoteReward(url, retries=1).values([respond("four")])[0])
    assert "the rewards of 1 responses are missing" in caplog.text


def test_a_server_that_hangs_is_left_after_the_timeout(caplog):
    def hang(content, headers, number):
        time.sleep(3)
        return 200, {"rewards": [1]}

    with server(hang) as (url, _):
        assert math.isnan(RemoteReward(url, timeout_seconds=0.3, retries=0).values([respond("four")])[0])
    assert "timed out" in caplog.text


def test_the_token_comes_from_the_environment(monkeypatch):
    def guarded(content, headers, number):
        return lengths(content, headers, number) if headers["Authorization"] == "Bearer abc" else (401, {})

    monkeypatch.setenv("REWARD_TOKEN", "abc")
    with server(guarded) as (url, _):
        assert RemoteReward(url, token_variable="REWARD_TOKEN").values([respond("four")]) == [4.0]
    monkeypatch.delenv("REWARD_TOKEN")
    with pytest.raises(InputError, match="REWARD_TOKEN"):
        RemoteReward(url, token_variable="REWARD_TOKEN")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"url": "localhost:8000"}, "url must begin with http"),
        ({"url": "http://x", "timeout_seconds": 0}, "timeout_seconds"),
        ({"url": "http://x", "retries": -1}, "retries"),
        ({"url": "http://x", "batch_size": 0}, "batch_size"),
    ],
)
def test_unusable_settings(arguments, message):
    with pytest.raises(InputError, match=message):
        RemoteReward(**arguments)
