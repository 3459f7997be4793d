"""Print what watches servers with Prometheus and Grafana: alerting rules, or a dashboard.

Both are made for the series `swift_tiers_*` of this release, which a server has on its /metrics with SGLang's
--enable-metrics. Give the rules to Prometheus as one of its `rule_files`; import the dashboard in Grafana.
"""

from __future__ import annotations

import argparse
import json

from ...base.errors import USAGE, CommandError

SUMMARY = "print alerting rules for Prometheus, or a dashboard for Grafana"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("alerts", "dashboard"), help="rules as YAML, or a dashboard as JSON")
    parser.add_argument("--markdown", action="store_true", help="alerts as the table of docs/operations.md")


def run(options: argparse.Namespace) -> int:
    from .alerts import as_markdown, as_yaml
    from .dashboard import make_dashboard

    if options.what == "alerts":
        print(as_markdown() if options.markdown else as_yaml(), end="")
        return 0
    if options.markdown:
        raise CommandError("--markdown is for alerts", USAGE)
    print(json.dumps(make_dashboard(), indent=2))
    return 0
