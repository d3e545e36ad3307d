"""Build a report from stores: read, group, analyse, then write sentences, charts and tables."""

import itertools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from corewise import __version__
from corewise.analysis.columns import encode_column
from corewise.analysis.efficiency import compute_efficiencies
from corewise.analysis.findings.finding import Finding
from corewise.analysis.findings.study_evidence import StudyEvidence
from corewise.analysis.findings.study_findings import collect_findings, get_severity_rank
from corewise.analysis.groups import Group, RecordSource
from corewise.analysis.ranking import TrialRanking, rank_trials
from corewise.analysis.scaling.scaling_curves import find_scaling_curves
from corewise.analysis.sections import LEFTOVER_NOTE, Section, build_sections
from corewise.analysis.sources import describe_unfinished, read_sources
from corewise.analysis.tuning_commands import build_tune_command, is_tuning
from corewise.analysis.tuning_results import StoredTuning
from corewise.errors import UserError, suggest_nearest
from corewise.report.answers import describe_group, describe_headline, summarize_headlines
from corewise.report.machine_tables import build_machine_tables, build_version_tables
from corewise.report.method import describe_method
from corewise.report.reorders import build_reorder_table
from corewise.report.report_model import Chart, Report, StudyPart, Table
from corewise.report.scaling.scaling_part import ScalingPart, build_scaling_part
from corewise.report.tables import build_results_table, group_unmeasured
from corewise.report.tuning_sentences import build_tuning_tables, describe_cautions, describe_tuning
from corewise.study.record import Record, format_utc_now
from corewise.text_format import format_list, shorten

if TYPE_CHECKING:
    from corewise.report.dynamic.dynamic_part import DynamicPart
    from corewise.report.publications.published_figures import Publication

MAX_GROUPS_WITH_CHARTS = 12
NO_VALUES = encode_column(())
MAX_FINDINGS = 40
_MAX_TITLE_LENGTH = 120
# Libraries are looked up for this many sets of versions per store.
MAX_VERSION_SETS = 8


class UnknownStudy(UserError):
    """The stores hold no record of the requested study."""


@dataclass(frozen=True)
class ReportRequest:
    """What a report holds besides the records."""

    title: str = ""
    refresh_s: float | None = None
    progress: str = ""
    publications: "Sequence[Publication]" = ()


def build_report(
    stores: Sequence[Path],
    *,
    studies: Sequence[str] | None = None,
    tunings: Sequence[str] | None = None,
    refresh_s: float | None = None,
    published: bool = True,
    published_folders: Sequence[Path] = (),
    title: str = "",
    extra_records: Sequence[Record] = (),
    progress: str = "",
) -> Report:
    """Build the report of all records in the stores, of some studies, or of some tunings (by key).

    `extra_records` stand in for trials without a record while a study runs; `progress` says how far it is.
    Stores that hold the same study are compared side by side, by machine and by store.
    """
    from corewise.report.publications.published_figures import find_shipped_folder, load_publications

    publications = [*load_publications(find_shipped_folder())] if published else []
    for folder in published_folders:
        publications += load_publications(folder)
    sources, notices = read_sources(stores, extra_records)
    notices += [] if progress else describe_unfinished(sources)
    _check_studies(studies, sources)
    ask = ReportRequest(title, refresh_s, progress, publications)
    return build_report_from(sources, studies=studies, tunings=tunings, notices=notices, ask=ask)


def build_report_from(
    sources: Sequence[RecordSource],
    *,
    studies: Sequence[str] | None = None,
    tunings: Sequence[str] | None = None,
    notices: Sequence[str] = (),
    ask: ReportRequest | None = None,
) -> Report:
    """Build the report of records that were already read."""
    ask = ask or ReportRequest()
    sections = build_sections(sources, studies, tunings)
    builder = _PartBuilder(sections, sources, ask)
    parts = list(builder.build_parts())
    if len(builder.findings) > MAX_FINDINGS:
        builder.notices.append(f"Showing the {MAX_FINDINGS} most severe of {len(builder.findings):,} findings.")
    records = list({id(r): r for section in sections for r in section.records}.values())
    return Report(
        title=ask.title or _build_title(parts),
        made_at=format_utc_now(),
        corewise_version=__version__,
        summary=builder.summarize(),
        asides=[sentence for headline in builder.headlines for sentence in headline[1:]],
        studies=parts,
        findings=sorted(builder.findings, key=get_severity_rank)[:MAX_FINDINGS],
        machines=build_machine_tables(records),
        versions=build_version_tables(records, _read_libraries(sources)),
        notices=[*notices, *builder.notices],
        sources=[source.label for source in sources],
        refresh_s=ask.refresh_s,
    )


def _read_libraries(sources: Sequence[RecordSource]) -> Mapping[int, Mapping[str, str]]:
    """Return the libraries that a rank reported, for each set of versions (by identity)."""
    libraries: dict[int, dict[str, str]] = {}
    for source in sources:
        first = {id(r.versions): r.trial_id for r in source.records if r.status == "ok"}
        for key, trial_id in list(first.items())[:MAX_VERSION_SETS]:
            for record in source.read_full_records([trial_id]):
                ranks = [rank for run in record.runs for rank in run.get("ranks") or ()]
                reported = [rank.get("versions") for rank in ranks if isinstance(rank, Mapping)]
                libraries[key] = {
                    str(n): str(v) for each in reported if isinstance(each, Mapping) for n, v in each.items()
                }
    return libraries


def _check_studies(studies: Sequence[str] | None, sources: Sequence[RecordSource]) -> None:
    known = {record.study for source in sources for record in source.records}
    known |= {tuning.study for source in sources for tuning in source.tunings}
    for study in studies or ():
        if study not in known:
            hint = suggest_nearest(study, known) if known else "there are no records yet"
            raise UnknownStudy(f"no study {shorten(study)!r} in {format_list([s.label for s in sources])}: {hint}")


def _build_title(parts: Sequence[StudyPart]) -> str:
    names = [shorten(part.title, _MAX_TITLE_LENGTH) for part in parts]
    return f"Corewise: {format_list(names, 3)}" if names else "Corewise: nothing measured yet"


def _build_question(tuning: StoredTuning | None) -> str:
    return "" if tuning is None else f"What runs {shorten(tuning.name, 120)} fastest here?"


class _PartBuilder:
    """Builds the parts of a report study by study, and collects findings, notices and headlines."""

    def __init__(self, sections: Sequence[Section], sources: Sequence[RecordSource], ask: ReportRequest) -> None:
        self.sources, self.ask = sources, ask
        self.notices: list[str] = []
        self.findings: list[Finding] = []
        self.headlines: list[list[str]] = []
        self._num_with_charts = 0
        self._keys: set[str] = set()
        self._titles: set[str] = set()
        self.sections = sections

    def build_parts(self) -> Iterator[StudyPart]:
        """Yield the part of every section."""
        for section in self.sections:
            yield self._build_part(section)
        left = sum(len(section.groups) for section in self.sections) - MAX_GROUPS_WITH_CHARTS
        if left > 0:
            self.notices.append(
                f"Charts are shown for the first {MAX_GROUPS_WITH_CHARTS} workloads; "
                f"the other {left:,} have tables only."
            )

    def summarize(self) -> list[str]:
        """Return the summary of the whole report, or what to run if there are no results."""
        if not self.sections:
            where = shlex.quote(self.sources[0].label) if self.sources else "DIR"
            if any(source.num_unfinished for source in self.sources):
                return [f"No trial has finished yet. Run `corewise run STUDY --store {where}` to resume."]
            return [f"There are no records yet. Run a study with `corewise run STUDY --store {where}`."]
        return summarize_headlines(self.headlines)

    def _build_part(self, section: Section) -> StudyPart:
        study, tuning, groups = section.study, section.tuning, section.groups
        is_tuned = tuning is not None or section.is_leftover
        members = [(group, rank_trials(group)) for group in groups]
        answers = [LEFTOVER_NOTE] if section.is_leftover else []
        charts: list[Chart] = []
        tables: list[Table] = []
        citations: dict[str, None] = {}
        if tuning is not None:
            sentences = describe_tuning(tuning)
            self.headlines.append([sentences[0], *describe_cautions(tuning)])
            answers += sentences
            charts += self._build_tuning_charts(tuning)
            tables += build_tuning_tables(tuning)
        curves = {} if is_tuned else {k: find_scaling_curves(group) for k, (group, _) in enumerate(members)}
        for place, (group, standing) in enumerate(members):
            scaling = build_scaling_part(group, curves.get(place, ()))
            if not is_tuned:
                headline = describe_headline(group, standing)
                self.headlines.append([*scaling.headline, *headline])
                first, *others = describe_group(group, standing)
                answers += [first, *scaling.sentences, *others]
            drawn, shown = self._build_figures(group, standing, citations, scaling, is_tuned=is_tuned)
            dynamic = self._build_dynamic_part(group, standing)
            if dynamic is not None:
                answers += dynamic.sentences
                drawn, shown = dynamic.merge_charts(drawn), [*shown, *dynamic.tables]
            charts += drawn
            tables += shown
        charts += self._build_roofline(section)
        store = next((s.label for s in self.sources if any(r.study == study for r in s.records)), "corewise-store")
        if members and not section.is_leftover:
            again = build_tune_command(tuning, groups) if is_tuning(study, groups) else ()
            self.findings += collect_findings(StudyEvidence(study, store, members, again, curves))
        method = describe_method(groups)
        method += [("published figures", shorten(citation, 400)) for citation in citations]
        return StudyPart(
            key=self._create_key(section.title),
            title=section.title,
            question=next((group.question for group in groups if group.question), _build_question(tuning)),
            answers=answers,
            charts=[
                replace(chart, key=self._create_key(chart.key), title=self._create_title(chart.title, section.title))
                for chart in charts
            ],
            tables=[
                replace(
                    table,
                    key=self._create_key(f"{study} {table.key}"),
                    title=self._create_title(table.title, section.title),
                )
                for table in tables
            ],
            unmeasured=group_unmeasured(groups),
            method=method,
            progress=self.ask.progress,
        )

    def _build_figures(
        self,
        group: Group,
        standing: TrialRanking,
        citations: dict[str, None],
        scaling: ScalingPart,
        *,
        is_tuned: bool = False,
    ) -> tuple[list[Chart], list[Table]]:
        charts: list[Chart] = []
        tables: list[Table] = []
        if self._num_with_charts < MAX_GROUPS_WITH_CHARTS:
            from corewise.report.charts.chart_choice import build_group_charts
            from corewise.report.publications.comparison_tables import compare_with_published

            self._num_with_charts += 1
            # The steps of a ladder form no grid.
            charts += [] if is_tuned else [*scaling.charts, *build_group_charts(group, standing, scaling.units)]
            published = compare_with_published(group, standing, self.ask.publications)
            charts += [*published.charts, *self._build_samples_chart(group, standing)]
            tables += published.tables
            citations.update(dict.fromkeys(published.sources))
        results = build_results_table(group, standing, compute_efficiencies(group))
        first = [table for table in (results, build_reorder_table(group)) if table is not None]
        return charts, [*first, *scaling.tables, *tables]

    def _build_dynamic_part(self, group: Group, standing: TrialRanking) -> "DynamicPart | None":
        """Build the part on changing thread widths, where they were measured."""
        if "malleable" not in group.columns.get("execution", NO_VALUES).values:
            return None
        from corewise.report.dynamic.dynamic_part import build_dynamic_part

        return build_dynamic_part(group, standing, self.ask.publications)

    def _build_roofline(self, section: Section) -> list[Chart]:
        """Build the roofline of the study's trials, where ceilings are known."""
        if not any("fraction_of_ceiling" in r.metrics for group in section.groups for r in group.records):
            return []
        from corewise.report.charts.roofline import build_roofline_chart

        chart = build_roofline_chart(section.study, section.title, section.groups)
        return [] if chart is None else [chart]

    def _build_tuning_charts(self, tuning: StoredTuning) -> list[Chart]:
        from corewise.report.charts.ladder import build_tuning_charts

        return build_tuning_charts(tuning)

    def _build_samples_chart(self, group: Group, standing: TrialRanking) -> list[Chart]:
        """Build the chart of raw samples, which are read for a few trials only."""
        from corewise.report.charts.chart_choice import choose_sampled_trials
        from corewise.report.charts.samples import build_samples_chart

        chosen = choose_sampled_trials(group, standing)
        samples: dict[int, Sequence[Sequence[float]]] = {}
        for i in chosen:
            for record in group.sources[i].read_full_records([group.records[i].trial_id]):
                samples[i] = [run.get("samples_s") or () for run in record.runs if run.get("status") == "ok"]
        chart = build_samples_chart(group, samples, chosen)
        return [] if chart is None else [chart]

    def _create_title(self, title: str, section: str) -> str:
        """Create a title that no other chart or table of the report has: by its section, else by a number."""
        numbered = (f"{title} ({number})" for number in itertools.count(2))
        candidates = itertools.chain((title, f"{title} ({section})"), numbered)
        unique = next(each for each in candidates if each not in self._titles)
        self._titles.add(unique)
        return unique

    def _create_key(self, name: str) -> str:
        """Create a key of letters, digits and hyphens that no other part of the report has."""
        from corewise.report.charts.chart_theme import build_key

        base = build_key(name)
        key, number = base, 1
        while key in self._keys:
            number += 1
            key = f"{base}-{number}"
        self._keys.add(key)
        return key
