"""Alerting rules for Prometheus: what the console warns of, as far as `/metrics` shows it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import NamedTuple

from swift_tiers.radix_tiering.bus.hear.rank_troubles import SHORT_RESTORES
from swift_tiers.radix_tiering.bus.hear.remote_troubles import LATE_QUESTIONS
from swift_tiers.radix_tiering.bus.hear.tier_troubles import NEARLY_FULL, PINNED, SICK_REFUSALS
from swift_tiers.radix_tiering.bus.hear.troubles import MANY_REQUESTS, SLOW_FACTOR

CRITICAL, WARNING = "critical", "warning"
#: Counters are looked at over so long.
_LATELY = "10m"
#: What the slowest hundredth of the requests to a device takes, where there are enough of them to tell. A rule of its
#: own, since the rule for slow devices compares it with itself.
DEVICE_P99 = "swift_tiers:device_request_seconds:p99_5m"
_DEVICE_P99_IS = (
    "histogram_quantile(0.99, sum by (job, instance, device, path, le) "
    "(rate(swift_tiers_device_request_seconds_bucket[5m])))"
    " and on (job, instance, device, path) sum by (job, instance, device, path) "
    f"(increase(swift_tiers_device_request_seconds_count[5m])) >= {MANY_REQUESTS}"
)
_FELL_SHORT = 'restores_total{outcome=~"expired|cut short"}'


class Alert(NamedTuple):
    """One rule. In what it says, `{{ $labels.tier }}` stands for a label of the series that it is of."""

    name: str  # behind `SwiftTiers`
    severity: str
    expression: str  # PromQL
    lasting: str  # it has to hold for so long; empty: it is told at once
    says: str
    remedy: str


def _grew(series: str) -> str:
    """Whether a counter has lately."""
    return f"increase(swift_tiers_{series}_total[{_LATELY}]) > 0"


def _of_server(series: str) -> str:
    """How often what a counter counts happens on a server. Its ranks of tensor parallelism count alike."""
    return f"sum by (job, instance) (max without (tp_rank) (rate(swift_tiers_{series}[{_LATELY}])))"


def _refused() -> Iterator[Alert]:
    """Of each reason for not taking pages in that comes from a lack or a fault."""
    for reason, remedy in SICK_REFUSALS.items():
        yield Alert(
            "Refuses" + "".join(word.title() for word in reason.split()),
            WARNING,
            f'increase(swift_tiers_refusals_total{{reason="{reason}"}}[{_LATELY}]) > 0',
            _LATELY,
            f"tier {{{{ $labels.tier }}}} does not take pages in: {reason}",
            remedy,
        )


ALERTS = (
    Alert(
        "ThreadHangs",
        CRITICAL,
        "swift_tiers_hung_threads > 0",
        "",
        "{{ $value }} threads have not got on for ten seconds",
        "a device, a driver or a file system does not answer; the log and the events thread.hangs say where",
    ),
    Alert(
        "LoadsFail",
        CRITICAL,
        _grew("failed_loads"),
        "",
        "copies to the device failed: their requests were answered with 503",
        "see the events load.failed, and the server's log",
    ),
    Alert(
        "PagesDamaged",
        CRITICAL,
        _grew("checksum_failures"),
        "",
        "pages of tier {{ $labels.tier }} were damaged: dropped, never served",
        "of ssd, check its devices; of others, test the machine's memory",
    ),
    Alert(
        "DeviceOut",
        CRITICAL,
        "swift_tiers_device_in_service == 0",
        "",
        "device {{ $labels.device }} ({{ $labels.path }}) is out of service: its pages are misses",
        "`swift-tiers inspect devices` says why; mend and readmit it, or replace it",
    ),
    Alert(
        "DeviceTakesNoPages",
        WARNING,
        "swift_tiers_device_takes_pages == 0 and swift_tiers_device_in_service == 1",
        "15m",
        "device {{ $labels.device }} ({{ $labels.path }}) gets no new pages",
        "it is drained, looked through after a start, or its file system is full or read-only: see `inspect devices`",
    ),
    Alert(
        "DeviceUnitsDamaged",
        CRITICAL,
        _grew("device_corrupt_units"),
        "",
        "stripe units of device {{ $labels.device }} ({{ $labels.path }}) were not what was written",
        "check the device and its cabling",
    ),
    Alert(
        "DeviceErrors",
        WARNING,
        f"{_grew('device_read_errors')} or {_grew('device_write_errors')}",
        "",
        "reads or writes of device {{ $labels.device }} ({{ $labels.path }}) failed",
        "see the kernel's log (dmesg)",
    ),
    Alert(
        "DeviceSlow",
        WARNING,
        # So many times the mean of the others: it times (their number) > factor times (the sum of the others).
        f"{DEVICE_P99} * on (job, instance) group_left () "
        f"(count by (job, instance) ({DEVICE_P99}) - 1 + {SLOW_FACTOR:g})"
        f" > on (job, instance) group_left () ({SLOW_FACTOR:g} * sum by (job, instance) ({DEVICE_P99}))",
        "5m",
        f"device {{{{ $labels.device }}}} ({{{{ $labels.path }}}}) takes over {SLOW_FACTOR:g} times as long as the "
        "others",
        "every page waits for its slowest device: drain it, or see what else uses it",
    ),
    Alert(
        "DevicesMissing",
        CRITICAL,
        "swift_tiers_stripe_missing_devices > 0",
        "",
        "{{ $value }} devices of the stripe set were not found at the start",
        "bring them back and restart; or, if they are gone for good, `swift-tiers fsck --repair --forget-missing`",
    ),
    Alert(
        "RestoresFallShort",
        WARNING,
        f"{_of_server(_FELL_SHORT)} > {SHORT_RESTORES:g} * {_of_server('restores_started_total')}",
        _LATELY,
        f"over {SHORT_RESTORES:.0%} of restores gave less than was found",
        "the devices are too slow, or host memory is too small: see `inspect devices` and `inspect tiers`",
    ),
    Alert(
        "RestoresLate",
        WARNING,
        f"{_of_server('restores_late_total')} > {SHORT_RESTORES:g} * {_of_server('restores_started_total')}",
        _LATELY,
        f"over {SHORT_RESTORES:.0%} of restores fell behind their estimates",
        "a source has become slow, see `inspect devices`; or its profile is off: `swift-tiers profile`",
    ),
    *_refused(),
    Alert(
        "TierPinned",
        WARNING,
        f"swift_tiers_pinned_pages >= {PINNED:g} * (swift_tiers_pages > 0)"
        f" and swift_tiers_used_bytes >= {NEARLY_FULL:g} * swift_tiers_limit_bytes",
        _LATELY,
        "hardly anything of tier {{ $labels.tier }} can be evicted",
        "make it larger, or unpin",
    ),
    Alert(
        "LandingMemoryFull",
        WARNING,
        "swift_tiers_landing_used_pages >= (swift_tiers_landing_pages > 0)",
        _LATELY,
        "all of landing memory has been used for ten minutes",
        "make device.landing larger",
    ),
    Alert(
        "RemoteStoreAway",
        WARNING,
        "swift_tiers_remote_engine_asked == 0",
        _LATELY,
        "the remote store has not been asked for ten minutes",
        "the log and the events remote.… say why",
    ),
    Alert(
        "RemoteStoreErrors",
        WARNING,
        _grew("remote_errors"),
        "",
        "the remote store answers with errors",
        "see the store's log",
    ),
    Alert(
        "RemoteObjectsDamaged",
        WARNING,
        _grew("remote_bad"),
        "",
        "objects of the remote store were not what they should be: never served",
        "check the store's memory and disks, and who else writes to it",
    ),
    Alert(
        "RemoteStoreLate",
        WARNING,
        f"{_of_server('remote_late_total')} > {LATE_QUESTIONS:g} * {_of_server('remote_questions_total')}",
        _LATELY,
        f"the remote store answers over {LATE_QUESTIONS:.0%} of what it is asked too late",
        "see what else uses the link and the store; or set remote.lookup_deadline higher",
    ),
    Alert(
        "LendingFaults",
        WARNING,
        _grew("lend_faults"),
        "",
        "errors of swift-tiers in lending or borrowing",
        "please report them: they are in the server's log",
    ),
    Alert(
        "OtherRelease",
        WARNING,
        _grew("lend_other_releases"),
        "",
        "a neighbour is of another release: nothing is lent to it or borrowed from it",
        "run one release of swift-tiers on a machine",
    ),
    Alert(
        "GpuLost",
        CRITICAL,
        "swift_tiers_gpu_answers == 0",
        "1m",
        "NVIDIA's driver does not answer for the GPU",
        "see the kernel's log (dmesg) for an Xid; reset it, or restart the machine",
    ),
)


def as_yaml() -> str:
    """The rules as a file of Prometheus."""
    lines = [
        "# Alerting rules for servers with swift-tiers, printed by `swift-tiers monitoring alerts`.",
        "groups:",
        "  - name: swift-tiers",
        "    rules:",
        f"      - record: {DEVICE_P99}",
        *_block("expr", _DEVICE_P99_IS),
    ]
    for alert in ALERTS:
        lines += [f"      - alert: SwiftTiers{alert.name}", *_block("expr", alert.expression)]
        if alert.lasting:
            lines.append(f"        for: {alert.lasting}")
        lines += ["        labels:", f"          severity: {alert.severity}", "        annotations:"]
        lines += _block("summary", f"{{{{ $labels.instance }}}}: {alert.says}", 10)
        lines += _block("description", alert.remedy, 10)
    return "\n".join(lines) + "\n"


def _block(name: str, text: str, indent: int = 8) -> list[str]:
    """Folded text, in which no character has a meaning of its own."""
    folded = textwrap.wrap(text, 120 - indent - 2, break_long_words=False, break_on_hyphens=False)
    return [f"{' ' * indent}{name}: >-", *(f"{' ' * (indent + 2)}{line}" for line in folded)]


def as_markdown() -> str:
    """The rules as a table."""
    rows = ["| alert `SwiftTiers…` | severity | says | remedy |", "|---|---|---|---|"]
    for alert in ALERTS:
        says = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda label: label[1].upper(), alert.says)
        says = says.replace("{{ $value }}", "N")
        rows.append(f"| `{alert.name}` | {alert.severity} | {says} | {alert.remedy} |")
    return "\n".join(rows) + "\n"
