//! The page that compares runs.

use maud::{DOCTYPE, Markup, html};

use super::{
    curves::{MIB, chart},
    metric::{Better, Metric, metrics},
    name, section, wide,
};
use crate::{
    chart::{Chart, CurvePoint, CurveStyle, Series, ValueScale},
    comparison::Comparison,
    number::{NONE, capital, clip, duration, percent, short, things},
    read::Report,
    run::{Epoch, Step, TestScores},
};

const LONGEST_VALUE: usize = 60;

/// A column of the table of runs.
struct Column {
    title: String,
    /// Which values come first; `None` for the order in which the runs were named.
    better: Option<Better>,
    of: Box<dyn Fn(&Report) -> f64>,
    format: fn(f64) -> String,
}

impl Comparison {
    /// The page: a whole HTML document that needs no other file, no network and no scripts.
    ///
    /// ```
    /// use stovepipe_report::{Comparison, Report};
    ///
    /// let run = |title: &str| Report { title: title.to_owned(), ..Report::default() };
    /// let page = Comparison { runs: vec![run("first"), run("second")] }.to_html();
    /// assert!(page.contains("first") && page.contains("second"));
    /// assert!(!page.contains("<script"));
    /// ```
    #[must_use]
    pub fn to_html(&self) -> String {
        let count = things(self.runs.len() as u64, "run", "runs");
        let columns = columns(&self.runs);
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                (super::head(&count, &rules(columns.len())))
                body {
                    main {
                        header {
                            p .kicker { "Stovepipe training runs" }
                            h1 { (count) }
                        }
                        (section("runs", "Results", runs(&self.runs, &columns)))
                        (settings(self))
                        (curves(&self.runs))
                    }
                    (super::footer("the files in the runs' folders"))
                }
            }
        };
        page.into_string()
    }
}

/// A table with a row for each run. Its rows are put in order by the style sheet, after the button that is pressed.
fn runs(runs: &[Report], columns: &[Column]) -> Markup {
    let orders: Vec<_> = columns.iter().map(|column| column.order(runs)).collect();
    let place = |run: usize| {
        let of = |(column, order): (usize, &Vec<usize>)| format!("--by-{column}:{};", order[run]);
        orders.iter().enumerate().map(of).collect::<String>()
    };
    html! {
        div .sortable {
            fieldset {
                legend { "Order by" }
                @for (index, column) in columns.iter().enumerate() {
                    label {
                        input type="radio" name="order" id={ "by-" (index) } checked[index == 0];
                        " " (column.title)
                    }
                }
            }
            (wide("Table of the runs", html! {
                table .figures .runs role="table" style={ "--columns:" (columns.len()) } {
                    thead role="rowgroup" {
                        tr role="row" {
                            @for column in columns { th scope="col" role="columnheader" { (column.title) } }
                        }
                    }
                    tbody role="rowgroup" {
                        @for (index, run) in runs.iter().enumerate() {
                            tr role="row" style=(place(index)) {
                                th scope="row" role="rowheader" class=(CurveStyle::Run(index).class()) {
                                    (index + 1) " " span .run-name { (name(&run.title)) }
                                    @if let Some(state) = state(run) { " " span .what { (state) } }
                                }
                                @for column in &columns[1..] {
                                    td role="cell" { ((column.format)((column.of)(run))) }
                                }
                            }
                        }
                    }
                }
            }))
        }
        p .note {
            "Results are those of the last test, of the averaged weights if there are any. Memory is the most that \
            the process held. Device-hours are the run's hours times its workers."
        }
    }
}

/// Puts the rows in order by each column, while its button is pressed.
fn rules(columns: usize) -> String {
    let rule = |column| {
        format!(".sortable:has(#by-{column}:checked) tbody tr {{ order: var(--by-{column}); }}\n")
    };
    (0..columns).map(rule).collect()
}

fn state(run: &Report) -> Option<&'static str> {
    match &run.summary {
        None => Some("not finished"),
        Some(summary) => summary.stopped.then_some("stopped early"),
    }
}

/// What the test of a run found last.
fn tested(run: &Report) -> Option<&TestScores> {
    let of_summary = run.summary.as_ref();
    let of_summary = of_summary.map(|own| own.averaged.as_ref().unwrap_or(&own.test));
    let of_epoch = |epoch: &'_ Epoch| epoch.averaged.is_some() || epoch.test.is_some();
    let last = run.epochs.iter().rev().find(|epoch| of_epoch(epoch));
    of_summary.or_else(|| last.and_then(|last| last.averaged.as_ref().or(last.test.as_ref())))
}

fn columns(runs: &[Report]) -> Vec<Column> {
    let column = |title: &str, better, of: fn(&Report) -> f64, format| Column {
        title: title.to_owned(),
        better: Some(better),
        of: Box::new(of),
        format,
    };
    let first = Column {
        title: "run".to_owned(),
        better: None,
        of: Box::new(|_| f64::NAN),
        format: |_| String::new(),
    };
    let of_test = |metric: Metric| Column {
        title: format!("test {}", metric.label),
        better: metric.better,
        of: Box::new(move |run| {
            tested(run)
                .and_then(|own| own.get(&metric.name))
                .unwrap_or(f64::NAN)
        }),
        format: metric.format,
    };
    let metrics = metrics(runs.iter().filter_map(tested));
    let scores = [Metric::named("loss")]
        .into_iter()
        .chain(metrics)
        .map(of_test);
    let of_summary = [
        column(
            "samples/s",
            Better::Higher,
            |run| of_summary(run, |own| own.samples_per_second),
            short,
        ),
        column(
            "bubble",
            Better::Lower,
            |run| of_summary(run, |own| own.bubble),
            percent,
        ),
        column(
            "memory, MiB",
            Better::Lower,
            |run| most_memory(run) / MIB,
            short,
        ),
        column(
            "time",
            Better::Lower,
            |run| of_summary(run, |own| own.seconds),
            duration,
        ),
        column(
            "device-hours",
            Better::Lower,
            |run| of_summary(run, |own| own.device_hours()),
            short,
        ),
    ];
    [first]
        .into_iter()
        .chain(scores)
        .chain(of_summary)
        .collect()
}

fn of_summary(run: &Report, of: fn(&crate::run::RunSummary) -> f64) -> f64 {
    run.summary.as_ref().map_or(f64::NAN, of)
}

fn most_memory(run: &Report) -> f64 {
    let all = run.steps.iter().filter_map(|step| step.memory);
    all.fold(f64::NAN, f64::max)
}

impl Column {
    /// The place of each run, the best one first. What is not known comes last.
    fn order(&self, runs: &[Report]) -> Vec<usize> {
        let mut sorted: Vec<_> = (0..runs.len()).collect();
        let key = |run: &usize| {
            let value = (self.of)(&runs[*run]);
            let value = match self.better {
                Some(Better::Higher) => -value,
                _ => value,
            };
            (value.is_nan(), value)
        };
        if self.better.is_some() {
            sorted.sort_by(|a, b| {
                let (a, b) = (key(a), key(b));
                a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
            });
        }
        let mut places = vec![0; runs.len()];
        sorted
            .into_iter()
            .enumerate()
            .for_each(|(place, run)| places[run] = place);
        places
    }
}

fn settings(comparison: &Comparison) -> Markup {
    let others = comparison.other_settings();
    if comparison.runs.len() < 2 {
        return html! {};
    }
    let content = html! {
        @if others.is_empty() {
            p { "The runs have the same settings." }
        } @else {
            (wide("Table of settings that differ", html! {
                table {
                    thead {
                        tr {
                            th scope="col" { "setting" }
                            @for run in 0..comparison.runs.len() { th scope="col" { (run + 1) } }
                        }
                    }
                    tbody {
                        @for other in &others {
                            tr {
                                th scope="row" { (name(&other.name)) }
                                @for value in &other.values {
                                    td { (clip(value.as_deref().unwrap_or(NONE), LONGEST_VALUE)) }
                                }
                            }
                        }
                    }
                }
            }))
        }
    };
    section("settings", "Settings that differ", content)
}

fn curves(runs: &[Report]) -> Markup {
    use ValueScale::{FromZero, Shares, Wide};
    let metrics = metrics(
        runs.iter()
            .flat_map(|run| &run.epochs)
            .filter_map(|epoch| epoch.test.as_ref()),
    );
    let of_test = |metric: &Metric| {
        let of = |epoch: &Epoch| epoch.test.as_ref()?.get(&metric.name);
        let title = format!("Test {}", metric.label);
        by_epoch(runs, (&title, metric.unit, metric.scale), of)
    };
    let first = metrics.first().map(of_test);
    let charts = [
        Some(of_test(&Metric::named("loss"))),
        first,
        Some(by_step(runs, ("Training loss", None, Wide), |step| {
            Some(step.loss)
        })),
        Some(by_step(
            runs,
            ("Gradient norm", Some("before clipping"), Wide),
            |step| step.gradient_norm,
        )),
        Some(by_step(
            runs,
            ("Speed", Some("samples/s"), FromZero),
            |step| Some(step.samples_per_second),
        )),
        Some(by_step(
            runs,
            ("Bubble", Some("idle share of a step"), Shares),
            |step| Some(step.bubble),
        )),
    ];
    let charts: Vec<_> = charts
        .into_iter()
        .flatten()
        .filter(|chart| !chart.series.is_empty())
        .collect();
    if charts.is_empty() {
        return html! {};
    }
    let content = html! {
        div .charts { @for chart in &charts { (chart.draw()) } }
        p .note { "Numbers are those of the runs in the first table." }
    };
    section("curves", "Curves", content)
}

type About<'a> = (&'a str, Option<&'static str>, ValueScale);

fn by_epoch(runs: &[Report], about: About<'_>, of: impl Fn(&Epoch) -> Option<f64>) -> Chart {
    let point = |epoch: &Epoch| {
        let (at, value) = (epoch.epoch, of(epoch)?);
        Some(CurvePoint { at, value })
    };
    of_runs(runs, about, |run| {
        run.epochs.iter().filter_map(point).collect()
    })
}

fn by_step(runs: &[Report], about: About<'_>, of: impl Fn(&Step) -> Option<f64>) -> Chart {
    let point = |step: &Step| {
        let (at, value) = (step.step, of(step)?);
        Some(CurvePoint { at, value })
    };
    Chart {
        along: "step",
        ..of_runs(runs, about, |run| {
            run.steps.iter().filter_map(point).collect()
        })
    }
}

/// A chart with a curve for each run that has points.
fn of_runs(
    runs: &[Report],
    (title, unit, scale): About<'_>,
    points: impl Fn(&Report) -> Vec<CurvePoint>,
) -> Chart {
    let series = runs.iter().enumerate().map(|(index, run)| Series {
        name: (index + 1).to_string().into(),
        style: CurveStyle::Run(index),
        points: points(run),
    });
    chart(
        &capital(title),
        unit,
        scale,
        series.filter(|series| !series.points.is_empty()),
    )
}
