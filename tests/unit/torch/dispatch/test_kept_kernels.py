"""Enabling and disabling while other threads compute."""

from __future__ import annotations

import threading
import time

import pytest
import torch

import bestof.torch as integration
from bestof.torch.dispatch import kept_kernels, overrides


def test_kernels_outlive_their_registration() -> None:
    kept_kernels._KEPT.clear()
    with integration.enabled():
        pass
    assert len(kept_kernels._KEPT) >= 2


@pytest.mark.long
def test_threads_compute_while_it_is_enabled_and_disabled() -> None:
    layer, x = torch.nn.Conv2d(3, 4, 3), torch.randn(1, 3, 8, 8)
    expected = layer(x).detach()
    errors: list[BaseException] = []
    done = threading.Event()

    def compute() -> None:
        try:
            while not done.is_set():
                loss = layer(x)
                loss.sum().backward()
                torch.testing.assert_close(loss.detach(), expected, rtol=1e-4, atol=1e-5)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=compute) for _ in range(2)]
    for one in threads:
        one.start()
    try:
        for _ in range(200):
            integration.enable()
            time.sleep(0.002)
            integration.disable()
            if errors:
                break
    finally:
        done.set()
        for one in threads:
            one.join()
        integration.disable()
    assert errors == []


def test_a_failed_registration_leaves_nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_operation: object) -> None:
        raise RuntimeError("no")

    integration.disable()
    monkeypatch.setattr(overrides._Made, "overrides", ())
    monkeypatch.setattr(overrides, "Override", fail)
    with pytest.raises(RuntimeError, match="no"):
        integration.enable()
    assert not overrides.overrides()
