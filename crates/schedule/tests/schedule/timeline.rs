//! Numbers and pictures of timelines.

use std::time::Duration;

use crate::common::{self, any_draft, schedule_and_costs};
use proptest::prelude::*;
use stovepipe_schedule::{
    Action, Bucket, Costs, DataParallel, GPipe, Interleaved, OneForwardOneBackward, PipeDream,
    Schedule, Scheduler, Span, SpanKind, Timeline, ZeroBubbleH1, ZeroBubbleV,
};
use svg::{
    node::{Attributes, element::tag::Type},
    parser::Event,
};

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn span(kind: SpanKind, action: Option<Action>, start: u64, end: u64) -> Span {
    common::span(kind, action, ms(start), ms(end))
}

/// Two measured workers: the second one recomputes, and both update.
fn measured() -> Timeline {
    use SpanKind::{Backward, Forward, Recompute, Update};
    let (f0, b0) = (Some(Action::forward(0, 0)), Some(Action::backward(0, 0)));
    let (f1, b1) = (Some(Action::forward(1, 0)), Some(Action::backward(1, 0)));
    Timeline::from(vec![
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
    ])
}

/// A millisecond for a forward pass, two for a backward pass.
fn simulated(schedule: &Schedule) -> Timeline {
    let costs = Costs::uniform(schedule.stages(), 1e-3, 1e-3, 1e-3);
    schedule.simulate(&costs).unwrap().timeline()
}

fn timeline(scheduler: &dyn Scheduler, stages: usize, micro_batches: usize) -> Timeline {
    simulated(&scheduler.schedule(stages, micro_batches).unwrap())
}

/// Pictures, traces and files say when times are of the host.
#[test]
fn host_time_is_named() {
    let host = Timeline {
        host_time: true,
        ..measured()
    };
    for (timeline, says) in [(&host, true), (&measured(), false)] {
        let svg = timeline.to_svg(&[]);
        assert_eq!(svg.contains("Host time: a box is the time"), says);
        let (text, trace) = (timeline.to_text(90, false), timeline.to_chrome_trace(&[]));
        assert_eq!(text.contains("bubble 50 % in host time"), says, "{text}");
        assert_eq!(
            trace
                .to_string()
                .contains("host time: when work was launched"),
            says
        );
        let json = serde_json::to_string(timeline).unwrap();
        assert_eq!(json.contains("host_time"), says);
        assert_eq!(&serde_json::from_str::<Timeline>(&json).unwrap(), timeline);
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
fn updates_in_the_midst_of_a_step_are_work() {
    let schedule = PipeDream::default().schedule(1, 3).unwrap();
    let mut costs = Costs::uniform(1, 1.0, 1.0, 1.0);
    costs.stages[0].update = 2.0;
    let timeline = schedule.simulate(&costs).unwrap().timeline();
    assert_eq!(timeline.busy(0).as_secs(), 15);
    assert_eq!(timeline.bubble(), 0.0);
}

/// Below each micro-batch, in tooltips and in traces. Pictures without versions have no rule for them.
#[test]
fn pictures_of_asynchronous_schedules_show_versions() {
    let schedule = PipeDream::default().schedule(2, 3).unwrap();
    let mut costs = Costs::uniform(2, 1.0, 1.0, 1.0);
    costs.stages.iter_mut().for_each(|stage| stage.update = 1.0);
    let timeline = schedule.simulate(&costs).unwrap().timeline();
    let of_worker = |worker: usize| {
        let spans = timeline.workers[worker].iter();
        let words = spans.map(|span| format!("{}:{}", span.action.unwrap(), span.version.unwrap()));
        words.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        of_worker(0),
        "0F0:0 0F1:0 0B0:0 0U0:1 0F2:1 0B1:0 0U1:2 0B2:1 0U2:3"
    );
    assert_eq!(
        of_worker(1),
        "1F0:0 1B0:0 1U0:1 1F1:1 1B1:1 1U1:2 1F2:2 1B2:2 1U2:3"
    );
    let picture = timeline.to_svg(&[]);
    let all = elements(&picture);
    assert_eq!(of_class(&all, "text", "number").len(), 18);
    assert_eq!(of_class(&all, "text", "number version").len(), 18);
    assert!(picture.contains("0F2 forward · weights 1 · at "));
    assert!(picture.contains("0U1 update · weights 2 · at "));
    let trace = timeline.to_chrome_trace(&[]);
    let events = trace["traceEvents"].as_array().unwrap();
    let update = events
        .iter()
        .find(|event| event["args"]["action"] == "0U1")
        .unwrap();
    assert_eq!(update["args"]["version"], 2);

    // Seventeen rows are too low for two numbers.
    let many = self::timeline(&PipeDream::default(), 17, 2).to_svg(&[]);
    assert!(!many.contains("version") && many.contains(" · weights 0 · "));
    let gpipe = self::timeline(&GPipe, 2, 3).to_svg(&[]);
    assert!(!gpipe.contains("version") && !gpipe.contains("weights"));
}

#[test]
fn without_work_there_is_no_bubble() {
    let update = span(SpanKind::Update, None, 0, 5);
    let instant = span(SpanKind::Forward, Some(Action::forward(0, 0)), 5, 5);
    let idle = vec![vec![], vec![]];
    for workers in [vec![], idle, vec![vec![update]], vec![vec![instant]]] {
        let timeline = Timeline::from(workers);
        assert_eq!(timeline.bubble(), 0.0, "{timeline:?}");
        assert_eq!(timeline.slowest_worker(), None);
        assert!(timeline.to_svg(&[]).ends_with("</svg>"));
        check_text(&timeline);
    }
    let text = Timeline::default().to_text(80, false);
    assert_eq!(text, "0 workers · nothing happened\n");
}

#[test]
fn an_idle_worker_counts_and_the_first_of_equally_slow_ones_is_named() {
    let work = span(SpanKind::Forward, Some(Action::forward(0, 0)), 0, 5);
    let workers = vec![vec![work], vec![]];
    assert_eq!(Timeline::from(workers).bubble(), 0.5);
    assert_eq!(timeline(&GPipe, 3, 2).slowest_worker(), Some(0));
}

/// The expected starts in milliseconds, worker by worker.
fn check_starts(schedule: &str, expected: &[&[u64]]) {
    let timeline = simulated(&schedule.parse().unwrap());
    let start = |span: &Span| (span.start.as_secs_f64() * 1e3).round() as u64;
    let starts = |spans: &Vec<Span>| spans.iter().map(start).collect::<Vec<_>>();
    let starts: Vec<_> = timeline.workers.iter().map(starts).collect();
    assert_eq!(starts, expected, "{schedule}");
}

#[test]
fn simulated_workers_wait_for_their_input() {
    check_starts("0F0 0F1 0B0 0B1", &[&[0, 1, 2, 4]]);
    check_starts("0F0 0B0\n1F0 1B0", &[&[0, 4], &[1, 2]]);
    let turns = "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1";
    check_starts(turns, &[&[0, 1, 4, 7], &[1, 2, 4, 5]]);
    check_starts("0F0 2F0 2B0 0B0\n1F0 1B0", &[&[0, 2, 3, 7], &[1, 5]]);
    check_starts("0F0 0I0 0W0\n1F0 1I0 1W0", &[&[0, 3, 4], &[1, 2, 3]]);
}

#[test]
fn serde_gives_the_same_timeline_back() {
    let json = serde_json::to_string(&measured()).unwrap();
    assert_eq!(serde_json::from_str::<Timeline>(&json).unwrap(), measured());
}

/// The name and attributes of an element.
type Element = (String, Attributes);

/// Every element of a picture that has a class. The picture is read as XML.
fn elements(picture: &str) -> Vec<Element> {
    let mut open = Vec::new();
    let mut elements = Vec::new();
    for event in svg::read(picture).unwrap() {
        match &event {
            Event::Tag(name, Type::Start, _) => open.push(name.to_string()),
            Event::Tag(name, Type::End, _) => {
                assert_eq!(open.pop().as_ref(), Some(&name.to_string()))
            }
            Event::Error(error) => panic!("{error}"),
            _ => {}
        }
        if let Event::Tag(name, Type::Start | Type::Empty, attributes) = event
            && attributes.contains_key("class")
        {
            elements.push((name.to_owned(), attributes));
        }
    }
    assert_eq!(open, [""; 0]);
    elements
}

/// The elements of a name and a class.
fn of_class<'a>(all: &'a [Element], name: &str, class: &str) -> Vec<&'a Attributes> {
    let is_of = |element: &&Element| element.0 == name && *element.1["class"] == *class;
    all.iter().filter(is_of).map(|element| &element.1).collect()
}

/// The number of rectangles of a class, with or without a shade.
fn rectangles(picture: &str, class: &str) -> usize {
    let is_of = |(name, attributes): &Element| {
        let mut classes = attributes["class"].split(' ');
        name == "rect" && classes.next() == Some(class)
    };
    elements(picture).into_iter().filter(is_of).count()
}

#[test]
fn a_picture_has_a_box_for_each_span() {
    let picture = measured().to_svg(&[]);
    // Each kind has a swatch in the legend, too.
    let kinds = ["forward", "recompute", "backward", "update", "bubble"];
    let boxes = kinds.map(|class| rectangles(&picture, class));
    assert_eq!(boxes, [2 + 1, 1 + 1, 2 + 1, 2 + 1, 2 + 1]);
    let busy = ["track", "bar"].map(|class| rectangles(&picture, class));
    assert_eq!(busy, [2, 2]);
    assert!(picture.contains("2 workers · 1 micro-batch · 150 ms · bubble 50 %"));
    assert!(picture.contains("\n30 %\n") && picture.contains("\n70 %\n"));
    assert!(picture.contains("1B0 recompute · at 50.0 ms · took 10.0 ms"));
    assert!(picture.contains("update · at 110 ms · took 40.0 ms"));
}

#[test]
fn both_halves_of_a_backward_pass_have_a_colour() {
    let picture = timeline(&ZeroBubbleH1, 2, 3).to_svg(&[]);
    for class in ["forward", "input", "weight"] {
        assert_eq!(rectangles(&picture, class), 2 * 3 + 1, "{class}");
    }
    assert_eq!(rectangles(&picture, "backward"), 0);
    assert!(picture.contains("1I2 input gradient · at"));
}

/// The numbers of a rectangle.
fn sides(attributes: &Attributes) -> [f64; 4] {
    ["x", "y", "width", "height"].map(|name| attributes[name].parse().unwrap())
}

/// Boxes are where their spans are, in proportion, and in the row of their worker.
#[test]
fn boxes_are_in_their_places() {
    let timeline = measured();
    let picture = timeline.to_svg(&[]);
    let elements = elements(&picture);
    let rectangles = |class: &str| -> Vec<_> {
        let rectangles = of_class(&elements, "rect", class).into_iter();
        rectangles.map(sides).collect()
    };
    let lanes = rectangles("lane");
    let [x, _, width, height] = lanes[0];
    assert!(lanes[1][1] >= lanes[0][1] + height, "lanes do not overlap");
    for (worker, spans) in timeline.workers.iter().enumerate() {
        for span in spans {
            let start = x + width * span.start.as_secs_f64() / 0.15;
            let long = width * span.length().as_secs_f64() / 0.15;
            let boxes = rectangles(&span.kind.to_string());
            let drawn = boxes.iter().any(|&[left, top, w, h]| {
                (left - start).abs() < 0.01
                    && (w - long).abs() <= 1.01
                    && (top, h) == (lanes[worker][1], height)
            });
            assert!(drawn, "{span:?} is not among {boxes:?}");
        }
    }
    // From the first start, 10 ms, to the last end of a pass, 110 ms.
    let bubble = rectangles("bubble")[1];
    assert!((bubble[0] - (x + width / 15.0)).abs() < 0.01);
    assert!((bubble[2] - width * 10.0 / 15.0).abs() < 0.01);
    let track = rectangles("track")[0][2];
    let percent = |bar: &[f64; 4]| (100.0 * bar[2] / track).round();
    let busy: Vec<_> = rectangles("bar").iter().map(percent).collect();
    assert_eq!(busy, [30.0, 70.0]);
}

#[test]
fn nothing_is_outside_of_the_page() {
    let labels = ["a worker with a name that is far too long for the picture".to_owned()];
    for timeline in [
        measured(),
        timeline(&ZeroBubbleV, 32, 64),
        timeline(&Interleaved { chunks: 4 }, 16, 8),
        timeline(&PipeDream::default(), 2, 4),
        timeline(&GPipe, 100, 3),
    ] {
        let picture = timeline.to_svg(&labels);
        let elements = elements(&picture);
        let [_, _, width, height] = sides(of_class(&elements, "rect", "page")[0]);
        for (name, attributes) in &elements {
            let number = |name: &str| attributes[name].parse::<f64>().unwrap();
            let (right, bottom) = match &name[..] {
                "rect" => (
                    number("x") + number("width"),
                    number("y") + number("height"),
                ),
                "text" => (number("x"), number("y")),
                _ => continue,
            };
            assert!(right <= width && bottom <= height, "{name} {attributes:?}");
        }
    }
}

#[test]
fn the_legend_names_only_what_occurs() {
    let picture = simulated(&Schedule::inference(2, 2).unwrap()).to_svg(&[]);
    assert_eq!(rectangles(&picture, "forward"), 4 + 1);
    assert_eq!(rectangles(&picture, "backward"), 0);
    assert!(!picture.contains("last stage of a worker"));
}

#[test]
fn numbers_are_drawn_where_they_fit() {
    let numbers = |micro_batches| {
        let picture = timeline(&GPipe, 2, micro_batches).to_svg(&[]);
        picture.matches("class=\"number\"").count()
    };
    assert_eq!(numbers(4), 2 * 2 * 4);
    assert_eq!(numbers(512), 0);
}

#[test]
fn several_stages_of_a_worker_have_shades() {
    let picture = timeline(&Interleaved { chunks: 2 }, 4, 2).to_svg(&[]);
    let elements = elements(&picture);
    let count = |class| of_class(&elements, "rect", class).len();
    // Each worker has two micro-batches in its first stage and two in its last. Plus the legend.
    assert_eq!(["forward s0", "forward s3"].map(count), [4 + 1, 4 + 1]);
    assert_eq!(["backward s0", "backward s3"].map(count), [4, 4]);
    assert_eq!(count("forward"), 1);
    assert!(picture.contains("first to last stage of a worker"));
}

#[test]
fn every_class_has_a_colour_on_light_and_dark_pages() {
    let style = include_str!("../../src/svg/style.css");
    assert!(style.contains("prefers-color-scheme: dark"));
    assert!(measured().to_svg(&[]).contains(style));
    for kind in "forward recompute backward input weight update".split(' ') {
        for shade in ["", ".s0", ".s1", ".s2", ".s3"] {
            let rule = format!("\n.{kind}{shade} {{ fill");
            assert!(style.contains(&rule), "{rule}");
        }
    }
}

#[test]
fn labels_are_escaped_and_default_to_numbers() {
    let picture = measured().to_svg(&["a <b> & \"c\"\u{1}".to_owned()]);
    for label in ["a &lt;b&gt; &amp; \"c\"", "worker 1"] {
        let text = format!("\n{label}\n</text>");
        assert!(picture.contains(&text), "{picture}");
    }
    let long = measured().to_svg(&["0123456789".repeat(5)]);
    let short = "\n0123456789012345678901234567890123456789012…\n";
    assert!(long.contains(short), "{long}");
}

/// The rectangles of a path: width and height of each.
fn areas(path: &str) -> impl Iterator<Item = (f64, f64)> {
    let rectangles = path.split('M').skip(1);
    rectangles.map(|rectangle| {
        let after = |letter| rectangle.split(letter).nth(1).unwrap();
        let number = |text: &str| {
            let digits = text.find(|c: char| !"0123456789.".contains(c)).unwrap();
            text[..digits].parse().unwrap()
        };
        (number(after('h')), number(after('v')))
    })
}

/// Of a lane with narrow boxes, each kind colours its share of time.
#[test]
fn narrow_boxes_are_drawn_as_shares() {
    let timeline = timeline(&OneForwardOneBackward, 2, 4096);
    let picture = timeline.to_svg(&[]);
    assert!(picture.contains("as high as its share of time"));
    let elements = elements(&picture);
    let [_, _, width, height] = sides(of_class(&elements, "rect", "lane")[0]);
    for kind in [SpanKind::Forward, SpanKind::Backward] {
        let class = kind.to_string();
        let paths = of_class(&elements, "path", &class);
        let rectangles = paths.into_iter().flat_map(|it| areas(&it["d"]));
        let drawn: f64 = rectangles.map(|(w, h)| w * h).sum();
        let spans = timeline.workers.iter().flatten();
        let spans = spans.filter(|span| span.kind == kind);
        let busy: f64 = spans.map(|span| span.length().as_secs_f64()).sum();
        let share = busy / (2.0 * timeline.length().as_secs_f64());
        let error = drawn / (2.0 * width * height) - share;
        assert!(error.abs() < 0.02, "{class} {share}");
    }
}

#[test]
fn one_narrow_box_is_no_share() {
    let mut timeline = measured();
    timeline.workers[0][2] = span(SpanKind::Update, None, 110, 110);
    let picture = timeline.to_svg(&[]);
    assert!(!picture.contains("share of time"));
    let paths = elements(&picture).into_iter().filter(|it| it.0 == "path");
    assert_eq!(paths.count(), 1, "an instant can be seen");
}

#[test]
fn pictures_of_long_steps_stay_small() {
    for (timeline, most) in [
        (timeline(&GPipe, 4, 4096), 200_000),
        (timeline(&OneForwardOneBackward, 512, 512), 1_000_000),
        (timeline(&ZeroBubbleV, 96, 2048), 2_000_000),
        // Most boxes are just not narrow.
        (timeline(&OneForwardOneBackward, 64, 128), 4_000_000),
        (timeline(&ZeroBubbleV, 96, 70), 4_000_000),
    ] {
        let picture = timeline.to_svg(&[]);
        assert!(picture.len() < most, "{} bytes", picture.len());
        elements(&picture);
    }
}

#[test]
fn of_many_workers_the_first_and_last_are_drawn() {
    let picture = timeline(&GPipe, 100, 2).to_svg(&[]);
    assert_eq!(rectangles(&picture, "lane"), 48);
    assert!(picture.contains("⋯ 52 more workers ⋯"));
    assert!(picture.contains("\nworker 23\n") && picture.contains("\nworker 76\n"));
    assert!(!picture.contains("\nworker 24\n") && !picture.contains("\nworker 75\n"));
}

#[test]
fn a_trace_has_named_rows_and_complete_events() {
    let trace = measured().to_chrome_trace(&["first".to_owned()]);
    let events = trace["traceEvents"].as_array().unwrap();
    let of_phase = |phase| events.iter().filter(move |event| event["ph"] == phase);
    let names = of_phase("M").filter(|event| event["name"] == "thread_name");
    let names: Vec<_> = names.map(|event| &event["args"]["name"]).collect();
    assert_eq!(names, ["first", "worker 1"]);
    assert_eq!(of_phase("X").count(), 7);
    let recompute = serde_json::json!({
        "ph": "X", "pid": 0, "tid": 1, "name": "recompute 0", "cat": "recompute",
        "cname": "thread_state_uninterruptible", "ts": 50_000.0, "dur": 10_000.0,
        "args": { "action": "1B0", "stage": 1, "micro_batch": 0 },
    });
    assert_eq!(*of_phase("X").nth(4).unwrap(), recompute);
    assert_eq!(events.last().unwrap()["args"], serde_json::json!({}));
}

/// Perfetto colours by the name without numbers.
#[test]
fn each_kind_has_a_name_and_a_category_in_a_trace() {
    let trace = timeline(&ZeroBubbleH1, 1, 1).to_chrome_trace(&[]);
    let events = trace["traceEvents"].as_array().unwrap().iter();
    let spans: Vec<_> = events.filter(|event| event["ph"] == "X").collect();
    let of_key = |key: &str| -> Vec<_> { spans.iter().map(|event| event[key].clone()).collect() };
    let kinds = ["forward", "input gradient", "weight gradient"];
    assert_eq!(of_key("name"), kinds.map(|kind| format!("{kind} 0")));
    assert_eq!(of_key("cat"), kinds);
}

#[test]
fn text_has_a_row_for_each_worker() {
    // 36 cells for 12 ms.
    assert_eq!(
        timeline(&GPipe, 2, 3).to_text(44, false),
        "2 workers · 3 micro-batches · 12.0 ms · bub…\n\
         0 F0─F1─F2─·········B0────B1────B2────  75 %\n\
         1 ···F0─F1─F2─B0────B1────B2────······  75 %\n\
         F forward  B backward  · bubble\n"
    );
}

#[test]
fn text_shows_stages_by_case() {
    let timeline = timeline(&Interleaved { chunks: 2 }, 2, 2);
    let text = timeline.to_text(80, false);
    assert!(text.contains("f1"), "{text}");
    assert!(text.ends_with("lower case: every other stage\n"), "{text}");
}

/// The text without escape sequences.
fn without_colour(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let first = parts.next().unwrap().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').unwrap().1)
}

fn check_text(timeline: &Timeline) {
    for width in [0, 1, 39, 40, 41, 63, 64, 80, 133, 400] {
        let plain = timeline.to_text(width, false);
        for line in plain.lines() {
            assert!(line.chars().count() <= width.max(40), "{width} {line}");
        }
        assert!(!plain.contains('\u{1b}') && plain.ends_with('\n'));
        // In colour, lines are spaces.
        let coloured = without_colour(&timeline.to_text(width, true));
        assert_eq!(coloured.replace(' ', "─"), plain.replace(' ', "─"));
    }
}

#[test]
fn text_has_as_many_letters_as_time() {
    let timeline = timeline(&OneForwardOneBackward, 2, 1000);
    let text = timeline.to_text(1000, false);
    let row = text.lines().nth(2).unwrap();
    let letters = |letter: char| row.chars().filter(|&c| c == letter).count() as f64;
    // Forward passes take a third of the time.
    let share = letters('F') / (letters('F') + letters('B'));
    assert!((share - 1.0 / 3.0).abs() < 0.02, "{row}");
}

#[test]
fn colours_are_ended() {
    let text = timeline(&GPipe, 1, 1).to_text(40, true);
    assert!(text.contains("\u{1b}[30;44mF0"), "{text:?}");
    assert!(text.contains("\u{1b}[30;43mB0"), "{text:?}");
    let count = |sequence| text.matches(sequence).count();
    assert_eq!(count("\u{1b}[30;"), count("\u{1b}[0m"));
}

#[test]
fn of_many_workers_the_first_and_last_are_written() {
    let text = timeline(&GPipe, 1000, 2).to_text(80, false);
    assert_eq!(text.lines().count(), 1 + 64 + 1 + 1);
    assert!(text.contains("\n⋯ 936 more workers ⋯\n"));
    let has = |row: &str| text.contains(row);
    assert!(has("\nworker   0 ") && has("\nworker 999 "), "{text}");
}

/// Spans of a broken clock: in any order, overlapping, backwards, endless.
fn any_timeline() -> impl Strategy<Value = Timeline> {
    let time = prop_oneof![
        (0..100_u64).prop_map(ms),
        Just(Duration::ZERO),
        Just(Duration::from_nanos(1)),
        Just(Duration::MAX),
    ];
    let action = (any::<bool>(), 0..4_usize, any::<usize>());
    let span = (action, 0..SpanKind::ALL.len(), time.clone(), time).prop_map(
        |((has, stage, i), kind, start, end)| {
            let action = has.then(|| Action::forward(stage, i));
            common::span(SpanKind::ALL[kind], action, start, end)
        },
    );
    let workers = prop::collection::vec(prop::collection::vec(span, 0..8), 0..5);
    workers.prop_map(Timeline::from)
}

proptest! {
    #[test]
    fn any_measurement_can_be_drawn(timeline in any_timeline()) {
        elements(&timeline.to_svg(&[]));
        check_text(&timeline);
        prop_assert!(timeline.to_chrome_trace(&[]).is_object());
        prop_assert!((0.0..=1.0).contains(&timeline.bubble()));
    }

    #[test]
    fn any_simulation_can_be_drawn((schedule, costs) in schedule_and_costs(5, 8)) {
        let timeline = schedule.simulate(&costs).unwrap().timeline();
        elements(&timeline.to_svg(&[]));
        check_text(&timeline);
    }

    #[test]
    fn any_order_can_be_drawn(draft in any_draft()) {
        let timeline = simulated(&Schedule::new(draft.lists()).unwrap());
        let picture = timeline.to_svg(&[]);
        let drawn = ["forward", "backward", "input", "weight"].map(|class| rectangles(&picture, class));
        let spans = timeline.workers.iter().flatten();
        prop_assert!(spans.clone().next().is_some());
        prop_assert!(drawn.iter().sum::<usize>() > spans.filter(|span| !span.length().is_zero()).count());
        check_text(&timeline);
    }
}

/// Two replicas, whose gradients are added up in two buckets of 2 ms, half of it after the last pass.
fn replicated() -> Timeline {
    let mut costs = Costs::uniform(1, 0.001, 0.001, 0.001);
    let bucket = |ready| Bucket {
        ready,
        seconds: 0.002,
    };
    costs.stages[0].buckets = [0.0, 1.0].map(bucket).to_vec();
    let schedule = DataParallel::equal(GPipe, 2).schedule(1, 2).unwrap();
    schedule.simulate(&costs).unwrap().timeline()
}

#[test]
fn all_reduces_are_thin_bars() {
    let picture = replicated().to_svg(&[]);
    let bars: Vec<_> = (elements(&picture).into_iter())
        .filter(|(name, attributes)| name == "rect" && *attributes["class"] == *"reduce")
        .map(|(_, attributes)| attributes["height"].to_string())
        .collect();
    // One swatch, and two in each row, below boxes of 28 pixels.
    assert_eq!(bars, ["12", "5", "5", "5", "5"]);
    assert!(picture.contains(
        "2 workers · 2 micro-batches · 5.00 ms · bubble 0 % · 50 % of all-reduce hidden"
    ));
    assert!(picture.contains("all-reduce · at 3.00 ms · took 2.00 ms"));
    assert!(!timeline(&GPipe, 1, 2).to_svg(&[]).contains("all-reduce"));
}

#[test]
fn text_shows_all_reduces_where_no_pass_runs() {
    // 50 cells for 5 ms.
    let text = replicated().to_text(58, false);
    let row = "0 F0────────B0──────────────────A─────────────────── 100 %";
    assert_eq!(text.lines().nth(1), Some(row));
    assert!(
        text.ends_with("F forward  B backward  A all-reduce  · bubble\n"),
        "{text}"
    );
}

#[test]
fn all_reduces_have_a_row_of_their_own_in_a_trace() {
    let trace = replicated().to_chrome_trace(&[]);
    let events = trace["traceEvents"].as_array().unwrap();
    let named = events.iter().filter(|event| event["name"] == "thread_name");
    let names: Vec<_> = named
        .map(|event| {
            (
                event["tid"].as_u64().unwrap(),
                event["args"]["name"].as_str().unwrap(),
            )
        })
        .collect();
    let expected = [
        (0, "worker 0"),
        (2, "worker 0 · all-reduce"),
        (1, "worker 1"),
        (3, "worker 1 · all-reduce"),
    ];
    assert_eq!(names, expected);
    let rows = events
        .iter()
        .filter(|event| event["cat"] == "all-reduce")
        .map(|event| event["tid"].as_u64().unwrap());
    assert_eq!(rows.collect::<Vec<_>>(), [2, 2, 3, 3]);
}

#[test]
fn all_reduces_are_no_passes() {
    let timeline = replicated();
    assert_eq!((timeline.length(), timeline.bubble()), (ms(5), 0.0));
    assert_eq!(timeline.busy(0), ms(3));
}
