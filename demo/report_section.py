"""Make the part of the report page about the framework's work: figures, charts and their tables."""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from demo.activity import Activity, JobClass, Process, Samples
from demo.plots import between, colours, histogram_plot, pace_plot, shown_s
from demo.series import Bin, TimeSlice, histogram, mean_rate, time_slices
from workers.code_index.report.markup import Column, Html, breakable, table, tag

LISTED_PROCESSES: Final = 24
LISTED_CLASSES: Final = 24
_NONE: Final = "–"


def strip(activity: Activity, proof: str = "") -> Html:
    """Return the section; the page needs ``style()`` too. ``proof`` says how the results show that no job was lost."""
    if not activity.jobs:
        return tag("section", _header(activity, proof), class_="jobs")
    return tag(
        "section",
        _header(activity, proof),
        _tiles(activity),
        _pace(activity),
        tag("section", *_distributions(activity), class_="two"),
        _classes(activity),
        class_="jobs",
    )


@cache
def style() -> str:
    """Return the style sheet of the section."""
    return Path(__file__).with_name("jobs.css").read_text("utf-8")


def _header(activity: Activity, proof: str) -> Html:
    proven = [tag("p", proof, class_="proof")] if proof else []
    return tag("header", tag("h2", "What the framework did"), tag("p", _summary(activity)), *proven)


def _summary(activity: Activity) -> str:
    if not activity.jobs:
        return "The logs of the worker processes have no line of a job."
    processes, jobs, runs = len(activity.processes), activity.jobs, activity.runs.begun
    ran = f"{_count(processes, 'worker process', 'worker processes')} ran {_count(jobs, 'job', 'jobs')}"
    sentences = [f"{ran} in {_count(runs, 'run', 'runs')}."]
    if activity.deaths:
        taken = sum(process.taken_back for process in activity.processes)
        sentences.append(
            f"{_count(activity.deaths, 'process', 'processes')} died; their successors took back {_count(taken, 'job', 'jobs')}, "
            f"and {_count(activity.extra_runs, 'run was a second run', 'runs were second runs')}."
        )
    sentences.append("These numbers are counted from the JSON logs of the processes and of their supervisor.")
    return " ".join(sentences)


def _tiles(activity: Activity) -> Html:
    slices = time_slices(activity)
    peak = max(part.rate for part in slices)
    tiles = [
        ("Jobs", activity.jobs, f"in {activity.runs.begun:,} runs"),
        ("Peak per second", f"{peak:,.3g}", f"{mean_rate(slices):,.3g} on average"),
        ("Failures", activity.runs.failed, "runs that raised"),
        ("Retries", activity.retries, "after a failure"),
        ("Restarts", activity.restarts, "processes"),
        ("Extra runs", activity.extra_runs, "second runs"),
    ]
    return tag("dl", *(_tile(name, value, note) for name, value, note in tiles), class_="tiles")


def _tile(name: str, value: int | str, note: str) -> Html:
    number = value if isinstance(value, str) else f"{value:,}"
    return tag("div", tag("dt", name), tag("dd", number, tag("small", note)), class_="tile")


def _pace(activity: Activity) -> Html:
    slices, styles = time_slices(activity), colours(activity)
    width = slices[0].width_s
    title = "Jobs per second"
    peak = max(part.rate for part in slices)
    name = f"Jobs done per second in {len(slices)} slices of {width:g} s, at most {peak:,.3g}, and the lives of the processes"
    note = f"Done in each {shown_s(width)} of the run, by process. Below: the processes of each shard, faint while they start."
    note += " A cross marks a death." if activity.deaths else ""
    cells = [
        Column[TimeSlice]("From", lambda row: f"{row.start_s:.3g} s", numeric=True),
        Column[TimeSlice]("Done", lambda row: f"{row.done:,}", numeric=True),
        Column[TimeSlice]("Per second", lambda row: f"{row.rate:,.3g}", numeric=True),
    ]
    numbers = tag("details", tag("summary", "As a table"), table(title, cells, slices))
    caption = tag("figcaption", tag("h2", title), tag("p", note))
    return tag("figure", caption, pace_plot(activity, slices, styles, name), numbers, *_processes(activity, styles))


def _processes(activity: Activity, styles: Sequence[str]) -> list[Html]:
    rows = list(zip(activity.processes, styles, strict=True))
    cells = [
        Column[tuple[Process, str]]("Process", lambda row: _process_name(*row)),
        Column[tuple[Process, str]]("Ready after", lambda row: _ready_after(row[0]), numeric=True),
        Column[tuple[Process, str]]("Runs", lambda row: f"{row[0].runs.begun:,}", numeric=True),
        Column[tuple[Process, str]]("Done", lambda row: f"{row[0].runs.done:,}", numeric=True),
        Column[tuple[Process, str]]("Failed", lambda row: row[0].runs.failed or _NONE, numeric=True),
        Column[tuple[Process, str]]("Cut off", lambda row: row[0].runs.unfinished or _NONE, numeric=True),
        Column[tuple[Process, str]]("Taken back", lambda row: row[0].taken_back or _NONE, numeric=True),
        Column[tuple[Process, str]]("End", lambda row: _ending(row[0])),
    ]
    parts = [table("Worker processes", cells, rows[:LISTED_PROCESSES])]
    if len(rows) > LISTED_PROCESSES:
        parts.append(tag("p", f"{len(rows) - LISTED_PROCESSES:,} more processes are in the logs.", class_="hint"))
    if activity.deaths:
        hint = "Cut off: runs with a start line and no end line. A killed process loses the lines that it has not written yet."
        parts.append(tag("p", hint, class_="hint"))
    return parts


def _process_name(process: Process, style: str) -> Html:
    return tag("span", tag("span", class_=f"dot {style}"), f"{process.shard} · pid {process.pid}")


def _ready_after(process: Process) -> str:
    if process.ready_s is None or process.started_s is None:
        return _NONE
    return shown_s(process.ready_s - process.started_s)


def _ending(process: Process) -> Html | str:
    if process.ended_s is None:
        return _NONE
    if not process.died:
        return "stopped in order" if process.status == 0 else f"stopped, status {process.status}"
    how = f"killed by signal {-process.status}" if (process.status or 0) < 0 else f"died, status {process.status}"
    return tag("span", f"{how} at {process.ended_s:.1f} s", class_="alarm")


def _distributions(activity: Activity) -> list[Html]:
    return [
        _distribution(
            "Waits",
            "From the push to the start of a run. Jobs pushed at once wait for those before them.",
            activity.waits,
        ),
        _distribution("Run times", "From the start of a run to its end.", activity.durations),
    ]


def _distribution(title: str, note: str, samples: Samples) -> Html:
    caption = tag("figcaption", tag("h2", title), tag("p", note))
    bins = histogram(samples)
    if not bins:
        return tag("figure", caption, tag("p", "None.", class_="none"))
    named = [("p50", 50.0), ("p95", 95.0), ("p99", 99.0), ("longest", 100.0)]
    marks = [tag("li", f"{name} ", tag("b", shown_s(samples.percentile(percent)))) for name, percent in named]
    half = f"half took at most {shown_s(samples.percentile(50))}"
    label = f"{title} of {len(samples.values):,} runs, in columns of growing width; {half}"
    cells = [
        Column[Bin](title, between),
        Column[Bin]("Runs", lambda row: f"{row.count:,}", numeric=True),
    ]
    numbers = tag("details", tag("summary", "As a table"), table(title, cells, bins))
    return tag(
        "figure", caption, histogram_plot(bins, samples, label), tag("ul", *marks, class_="percentiles"), numbers
    )


def _classes(activity: Activity) -> Html:
    cells = [
        Column[JobClass]("Class", lambda row: tag("code", breakable(row.name))),
        Column[JobClass]("Queue", lambda row: breakable(", ".join(sorted(row.queues)))),
        Column[JobClass]("Runs", lambda row: f"{row.runs.begun:,}", numeric=True),
        Column[JobClass]("Done", lambda row: f"{row.runs.done:,}", numeric=True),
        Column[JobClass]("Failed", lambda row: row.runs.failed or _NONE, numeric=True),
        Column[JobClass]("Other", lambda row: row.runs.otherwise or _NONE, numeric=True),
        Column[JobClass]("Not run", lambda row: row.not_run.total() or _NONE, numeric=True),
        Column[JobClass]("Wait p50", lambda row: shown_s(row.waits.percentile(50)), numeric=True),
        Column[JobClass]("Run p50", lambda row: shown_s(row.durations.percentile(50)), numeric=True),
        Column[JobClass]("Run p95", lambda row: shown_s(row.durations.percentile(95)), numeric=True),
    ]
    rows = sorted(activity.classes, key=lambda one: -one.runs.begun)
    parts = [table("Classes", cells, rows[:LISTED_CLASSES])]
    if len(rows) > LISTED_CLASSES:
        parts.append(tag("p", f"{len(rows) - LISTED_CLASSES:,} more classes are in the logs.", class_="hint"))
    if any(one.runs.otherwise for one in rows):
        parts.append(tag("p", "Other: the job was dropped, or put itself off.", class_="hint"))
    not_run = sum((one.not_run for one in rows), Counter[str]())
    if not_run:
        kinds = ", ".join(f"{count:,} {status.replace('_', ' ')}" for status, count in not_run.most_common())
        parts.append(
            tag("p", f"Not run: a policy held, put off or dropped the job before a run ({kinds}).", class_="hint")
        )
    return tag("article", tag("h2", "Classes"), tag("p", "The jobs of each worker class."), *parts)


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"
