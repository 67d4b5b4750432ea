"""Prometheus itself takes our rules and our text, and each alert fires on what a server exposed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from interop.apache_kafka import free_ports
from interop.toolbox import fetch, kept, program
from support.alarms import CAUSES, NOT_CAUSED
from support.authority import Authority
from support.patience import until
from support.scraping import Scrape, get
from test_ops_alerts import EXPRESSIONS, OPS

import cordwood

pytestmark = pytest.mark.interop

RULES = OPS / "prometheus/alerts.yml"
#: Minutes of the first and of the second scrape, one sample a minute; rules with `for` have time to fire.
BEFORE, AFTER = 360, 240


@pytest.fixture(scope="module")
def promtool() -> str:
    """Return the path of promtool: the one that is installed, or the one in Debian's package."""
    installed = shutil.which("promtool")
    if installed is not None:
        return installed

    def fill(directory: Path) -> None:
        fetch([program("apt-get"), "download", "prometheus"], directory)
        (package,) = directory.glob("prometheus_*.deb")
        fetch([program("dpkg"), "-x", package, directory], directory)
        package.unlink()

    return str(kept("prometheus", [], fill) / "usr/bin/promtool")


def run(promtool: str, *arguments: str, given: str = "") -> str:
    done = subprocess.run([promtool, *arguments], input=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_takes_the_rules(promtool: str) -> None:
    assert f"SUCCESS: {len(EXPRESSIONS)} rules found" in run(promtool, "check", "rules", str(RULES))


def test_promtool_takes_a_scrape(promtool: str) -> None:
    with cordwood.Broker(config={"cordwood.metrics.listen": "127.0.0.1:0"}) as broker:
        status, text = get(broker.metrics_url or "")
    assert status == 200
    assert run(promtool, "check", "metrics", given=text) == ""


def secured_example() -> dict[str, Any]:
    """Return the configuration of Prometheus that docs/metrics.md has for TLS and a token."""
    page = (OPS.parent / "docs/metrics.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    found: dict[str, Any] = yaml.safe_load(block)
    return found


@contextmanager
def prometheus(program: Path, file: Path) -> Iterator[str]:
    """Run Prometheus with a configuration *file*; yield the address of its API."""
    (port,) = free_ports(1)
    options = (f"--config.file={file}", f"--storage.tsdb.path={file.parent / 'series'}")
    with subprocess.Popen(
        [program, *options, f"--web.listen-address=127.0.0.1:{port}"], stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield f"http://127.0.0.1:{port}/api/v1"
        finally:
            process.terminate()


def targets(api: str) -> list[tuple[str, str]]:
    """Return health and last error of each target; none before Prometheus has answered."""
    try:
        found = json.loads(get(f"{api}/targets")[1])["data"]["activeTargets"]
    except (OSError, ValueError):
        return []
    return [(each["health"], each["lastError"]) for each in found]


def test_prometheus_scrapes_over_tls_with_the_token_as_the_page_says(promtool: str, tmp_path: Path) -> None:
    page = (OPS.parent / "docs/metrics.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    example = yaml.safe_load(block)
    authority, token = Authority(tmp_path), tmp_path / "metrics.token"
    token.write_text("c2VjcmV0LXRva2Vu\n")
    shutil.copy(RULES, tmp_path)
    config = {
        "cordwood.metrics.listen": "https://localhost:0",
        "cordwood.metrics.token.file": str(token),
        "listener.name.metrics.ssl.keystore.location": str(authority.issue("metrics").both),
    }
    with cordwood.Broker(config=config) as broker:
        (job,) = example["scrape_configs"]
        job["static_configs"] = [{"targets": [str(broker.metrics_url).split("/")[2]]}]
        # Often, so that the test need not wait for the first scrape.
        job |= {"scrape_interval": "1s", "scrape_timeout": "1s"}
        file = tmp_path / "prometheus.yml"
        file.write_text(yaml.safe_dump(example))
        assert "SUCCESS" in run(promtool, "check", "config", str(file))
        with prometheus(Path(promtool).with_name("prometheus"), file) as api:
            until(lambda: targets(api) == [("up", "")], "Prometheus scrapes with the token")


def series(before: Scrape, after: Scrape, expression: str) -> Iterator[dict[str, str]]:
    """Yield what Prometheus would have of a server that stayed as in one scrape and then as in the other.

    What was counted between the two is counted again every minute, and what is predicted goes from one to
    the other bit by bit.
    """
    for (name, labels), value in after.samples.items():
        if name not in expression:
            continue
        old, first, step = before.samples.get((name, labels), 0), value, 0.0
        if "predict_linear" in expression:
            first, step = old, (value - old) / AFTER
        elif name.endswith(("_total", "_bucket")) and not expression.startswith("min_over_time"):
            step = value - old
        quoted = ",".join(f'{label}="{text}"' for label, text in sorted(labels))
        values = f"{old:f}+0x{BEFORE} {first:f}{step:+f}x{AFTER}"
        yield {"series": f"{name}{{{quoted}}}", "values": values}


def rule_test(alert: str, before: Scrape, after: Scrape) -> dict[str, Any]:
    firing = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
    return {
        "interval": "1m",
        "input_series": list(series(before, after, EXPRESSIONS[alert])),
        "promql_expr_test": [
            {"expr": firing, "eval_time": f"{BEFORE}m", "exp_samples": []},
            {
                "expr": firing,
                "eval_time": f"{BEFORE + AFTER}m",
                "exp_samples": [{"labels": "{}", "value": 1}],
            },
        ],
    }


@pytest.mark.parametrize("alert", CAUSES)
def test_each_alert_fires_on_what_a_server_exposed(promtool: str, alert: str, tmp_path: Path) -> None:
    before, after = CAUSES[alert](tmp_path / "data")
    test = {"rule_files": [str(RULES)], "tests": [rule_test(alert, before, after)]}
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump(test))
    assert "SUCCESS" in run(promtool, "test", "rules", str(file))


#: What no server can be brought to expose here, as Prometheus would have it.
MADE = {
    "CordwoodDown": ('up{job="cordwood"}', f"1+0x{BEFORE} 0+0x{AFTER}"),
    "CordwoodPageFaults": (
        'cordwood_page_faults_total{kind="major"}',
        f"0+60x{BEFORE} 21600+900000x{AFTER}",
    ),
}


@pytest.mark.parametrize("alert", sorted(NOT_CAUSED))
def test_the_others_fire_on_numbers_that_are_made(promtool: str, alert: str, tmp_path: Path) -> None:
    name, values = MADE[alert]
    test = rule_test(alert, Scrape(), Scrape())
    test["input_series"] = [{"series": name, "values": values}]
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": [test]}))
    assert "SUCCESS" in run(promtool, "test", "rules", str(file))
