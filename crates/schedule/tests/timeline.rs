//! Numbers and pictures made from timelines.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use stovepipe_schedule::{Action, GPipe, Schedule, Scheduler, Span, SpanKind, Timeline};
use svg::{node::element::tag::Type, parser::Event};

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn span(kind: SpanKind, action: Option<Action>, start: u64, end: u64) -> Span {
    Span {
        action,
        kind,
        start: ms(start),
        end: ms(end),
    }
}

/// Two workers as they were measured: the second one recomputes, and both update.
fn measured() -> Timeline {
    use SpanKind::{Backward, Forward, Recompute, Update};
    let (f0, b0) = (Some(Action::forward(0, 0)), Some(Action::backward(0, 0)));
    let (f1, b1) = (Some(Action::forward(1, 0)), Some(Action::backward(1, 0)));
    Timeline {
        workers: vec![
            vec![
                span(Forward, f0, 10, 20),
                span(Backward, b0, 90, 110),
                span(Update, None, 110, 150),
            ],
            vec![
                span(Forward, f1, 20, 50),
                span(Recompute, b1, 50, 60),
                span(Backward, b1, 60, 90),
                span(Update, None, 90, 95),
            ],
        ],
    }
}

#[test]
fn updates_are_no_part_of_the_bubble() {
    let timeline = measured();
    assert_eq!(timeline.length(), ms(150));
    assert_eq!([timeline.busy(0), timeline.busy(1)], [ms(30), ms(70)]);
    assert!((timeline.bubble() - 0.5).abs() < 1e-12); // 100 of 2 × 100 ms
    assert_eq!(timeline.slowest_worker(), Some(1));
}

#[test]
fn without_work_there_is_no_bubble() {
    let update = span(SpanKind::Update, None, 0, 5);
    let instant = span(SpanKind::Forward, Some(Action::forward(0, 0)), 5, 5);
    for workers in [
        vec![],
        vec![vec![], vec![]],
        vec![vec![update]],
        vec![vec![instant]],
    ] {
        let timeline = Timeline { workers };
        assert_eq!(timeline.bubble(), 0.0, "{timeline:?}");
        assert_eq!(timeline.slowest_worker(), None);
        assert!(timeline.to_svg(&[]).ends_with("</svg>"));
    }
}

#[test]
fn an_idle_worker_counts() {
    let work = span(SpanKind::Forward, Some(Action::forward(0, 0)), 0, 5);
    let workers = vec![vec![work], vec![]];
    assert_eq!(Timeline { workers }.bubble(), 0.5);
}

#[test]
fn of_equally_slow_workers_the_first_is_named() {
    let timeline = GPipe.schedule(3, 2).unwrap().timeline(ms(1), ms(2));
    assert_eq!(timeline.slowest_worker(), Some(0));
}

/// The expected starts in milliseconds, worker by worker.
fn check_starts(schedule: &str, expected: &[&[u64]]) {
    let timeline = schedule.parse::<Schedule>().unwrap().timeline(ms(1), ms(2));
    let starts: Vec<Vec<u64>> = timeline
        .workers
        .iter()
        .map(|spans| {
            spans
                .iter()
                .map(|span| span.start.as_millis() as u64)
                .collect()
        })
        .collect();
    assert_eq!(starts, expected, "{schedule}");
}

#[test]
fn simulated_workers_wait_for_their_input() {
    check_starts("0F0 0F1 0B0 0B1", &[&[0, 1, 2, 4]]);
    check_starts("0F0 0B0\n1F0 1B0", &[&[0, 4], &[1, 2]]);
    check_starts(
        "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1",
        &[&[0, 1, 4, 7], &[1, 2, 4, 5]],
    );
    check_starts("0F0 2F0 2B0 0B0\n1F0 1B0", &[&[0, 2, 3, 7], &[1, 5]]);
}

#[test]
fn serde_gives_the_same_timeline_back() {
    let json = serde_json::to_string(&measured()).unwrap();
    assert_eq!(serde_json::from_str::<Timeline>(&json).unwrap(), measured());
}

/// Reads a picture as XML; the number of rectangles of a class.
fn rectangles(picture: &str, class: &str) -> usize {
    let mut open = Vec::new();
    let mut found = 0;
    for event in svg::read(picture).unwrap() {
        match event {
            Event::Tag(name, Type::Start, _) => open.push(name),
            Event::Tag(name, Type::End, _) => assert_eq!(open.pop(), Some(name)),
            Event::Error(error) => panic!("{error}"),
            _ => {}
        }
        if let Event::Tag("rect", Type::Start | Type::Empty, attributes) = event {
            found += usize::from(*attributes["class"] == *class);
        }
    }
    assert_eq!(open, [""; 0]);
    found
}

#[test]
fn a_picture_has_a_box_for_each_span() {
    let picture = measured().to_svg(&[]);
    // Each kind has a swatch in the legend, too.
    for (class, boxes) in [
        ("forward", 2),
        ("recompute", 1),
        ("backward", 2),
        ("update", 2),
    ] {
        assert_eq!(rectangles(&picture, class), boxes + 1, "{class}");
    }
    assert_eq!(rectangles(&picture, "bubble"), 2 + 1);
    assert!(picture.contains("2 workers · 1 micro-batch · 150 ms · bubble 50 %"));
    assert!(picture.contains("30 % busy") && picture.contains("70 % busy"));
    assert!(picture.contains("1B0 recompute · at 50.0 ms · took 10.0 ms"));
}

#[test]
fn the_legend_names_only_what_occurs() {
    let picture = Schedule::inference(2, 2)
        .unwrap()
        .timeline(ms(1), ms(1))
        .to_svg(&[]);
    assert_eq!(rectangles(&picture, "forward"), 4 + 1);
    assert_eq!(rectangles(&picture, "backward"), 0);
}

#[test]
fn numbers_are_drawn_where_they_fit() {
    let numbers = |micro_batches| {
        let schedule = GPipe.schedule(2, micro_batches).unwrap();
        let picture = schedule.timeline(ms(1), ms(2)).to_svg(&[]);
        picture.matches("class=\"number\"").count()
    };
    assert_eq!(numbers(4), 2 * 2 * 4);
    assert_eq!(numbers(512), 0);
}

#[test]
fn several_stages_of_a_worker_are_told_apart() {
    let schedule: Schedule = "0F0 1F0 1B0 0B0".parse().unwrap();
    let picture = schedule.timeline(ms(1), ms(2)).to_svg(&[]);
    assert!(picture.contains("\n1B0\n</text>"), "{picture}");
}

#[test]
fn labels_are_escaped_and_made_up_where_missing() {
    let picture = measured().to_svg(&["a <b> & \"c\"\u{1}".to_owned()]);
    assert!(
        picture.contains("\na &lt;b&gt; &amp; \"c\"\n</text>"),
        "{picture}"
    );
    assert!(picture.contains("\nworker 1\n</text>"));
}

#[test]
fn pictures_know_light_and_dark() {
    assert!(
        measured()
            .to_svg(&[])
            .contains("prefers-color-scheme: dark")
    );
}

#[test]
fn a_trace_has_named_rows_and_complete_events() {
    let trace = measured().to_chrome_trace(&["first".to_owned()]);
    let events = trace["traceEvents"].as_array().unwrap();
    let of_phase = |phase| events.iter().filter(move |event| event["ph"] == phase);
    let names: Vec<_> = of_phase("M")
        .filter(|event| event["name"] == "thread_name")
        .map(|event| event["args"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["first", "worker 1"]);
    assert_eq!(of_phase("X").count(), 7);
    assert_eq!(
        *of_phase("X").nth(4).unwrap(),
        serde_json::json!({
            "ph": "X", "pid": 0, "tid": 1, "name": "recompute 0", "cat": "recompute",
            "ts": 50_000.0, "dur": 10_000.0,
            "args": { "stage": 1, "micro_batch": 0 },
        })
    );
    assert_eq!(events.last().unwrap()["args"], serde_json::json!({}));
}
