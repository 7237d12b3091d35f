//! One worker: its name, a lane of boxes, and its utilization.

use std::collections::BTreeMap;

use ::svg::{
    Node,
    node::element::{Group, Path, Text, Title},
};

use crate::{
    Span, SpanKind, Timeline,
    summary::{duration, percent, stages, utilisation},
};

use super::{
    MARGIN, WIDTH,
    layout::{BAR, Layout, short},
    rectangle,
    shade::Colour,
    shares::NarrowBoxes,
    text,
};

/// The width of a digit, roughly.
const DIGIT: f64 = 6.2;
/// Boxes with fewer pixels are not drawn one by one.
const NARROW: f64 = 1.25;
/// A narrower box has no tooltip.
const POINTABLE: f64 = 5.0;
/// A lower lane has no numbers.
const LOWEST: f64 = 13.0;

/// A span, with left end and width in pixels.
type WideBox<'a> = (&'a Span, f64, f64);

pub(super) struct Row<'a> {
    layout: &'a Layout,
    timeline: &'a Timeline,
    worker: usize,
    y: f64,
    stages: Vec<usize>,
}

impl<'a> Row<'a> {
    pub fn new(layout: &'a Layout, timeline: &'a Timeline, worker: usize, y: f64) -> Self {
        Self {
            layout,
            timeline,
            worker,
            y,
            stages: stages(&timeline.workers[worker]),
        }
    }

    /// Returns whether some boxes were drawn as shares.
    pub fn draw(&self, page: &mut Group, label: &str) -> bool {
        self.draw_words(page, label);
        self.draw_lane(page);
        let height = self.layout.lane_height;
        let reduces = |span: &Span| span.kind == SpanKind::AllReduce;
        let (wide, runs) = self.sort_boxes(|span| !reduces(span));
        self.draw_boxes(page, &wide, &runs, (self.y, height));
        // All-reduces run beside passes.
        let thin = (height / 6.0).round();
        let (bars, narrow) = self.sort_boxes(reduces);
        self.draw_boxes(page, &bars, &narrow, (self.y + height - thin, thin));
        // Numbers come last, so that nothing hides them.
        for &(span, x, width) in &wide {
            for number in self.numbers(span, x, width) {
                page.append(number);
            }
        }
        runs.iter().any(NarrowBoxes::is_crowded)
    }

    /// Draws boxes in a lane at `y` of this height.
    fn draw_boxes(
        &self,
        page: &mut Group,
        wide: &[WideBox],
        runs: &[NarrowBoxes],
        (y, height): (f64, f64),
    ) {
        for &(span, x, width) in wide {
            // A little space between neighbours, less if they are narrow.
            let drawn = width - (width * 0.15).min(1.0);
            let class = Colour::of_span(span, &self.stages).class();
            let mut shape = rectangle(&class, x, y, drawn, height);
            if width >= 8.0 {
                shape = shape.set("rx", 2);
            }
            if width >= POINTABLE {
                shape = shape.add(Title::new(tooltip(span)));
            }
            page.append(shape);
        }
        let mut areas = BTreeMap::new();
        for run in runs {
            run.draw(&mut areas, y, height);
        }
        for (colour, outline) in areas {
            let path = Path::new().set("class", colour.class()).set("d", outline);
            page.append(path);
        }
    }

    /// Boxes wide enough to be drawn, and runs of narrow boxes.
    fn sort_boxes(
        &self,
        is_chosen: impl Fn(&Span) -> bool,
    ) -> (Vec<WideBox<'a>>, Vec<NarrowBoxes>) {
        let (mut wide, mut runs) = (Vec::new(), Vec::new());
        let mut run = NarrowBoxes::default();
        let spans = self.timeline.workers[self.worker].iter();
        for span in spans.filter(|span| is_chosen(span)) {
            let (x, width) = (self.layout.x(span.start), self.layout.width(span.length()));
            let is_narrow = width < NARROW;
            if !is_narrow || (x - run.end()).abs() > NARROW {
                runs.push(std::mem::take(&mut run));
            }
            if is_narrow {
                let colour = Colour::of_span(span, &self.stages);
                run.boxes.push((colour, x, x + width));
            } else {
                wide.push((span, x, width));
            }
        }
        runs.push(run);
        runs.retain(|run| !run.boxes.is_empty());
        (wide, runs)
    }

    fn draw_words(&self, page: &mut Group, label: &str) {
        let height = self.layout.lane_height;
        let is_low = height <= LOWEST;
        let class = if is_low { "label small" } else { "label" };
        let y = self.y + height / 2.0 + 4.0;
        let busy = utilisation(self.timeline, self.worker);
        page.append(text(class, MARGIN, y, short(label)));
        page.append(text("busy", WIDTH - MARGIN, y, percent(busy)));
        let x = self.layout.lane_x + self.layout.lane_width + 12.0;
        let y = self.y + height / 2.0 - 3.0;
        page.append(rectangle("track", x, y, BAR, 6.0).set("rx", 3));
        if busy > 0.0 {
            page.append(rectangle("bar", x, y, (BAR * busy).max(6.0), 6.0).set("rx", 3));
        }
    }

    /// Draws what is behind the boxes.
    fn draw_lane(&self, page: &mut Group) {
        let layout = self.layout;
        let (start, end) = self.timeline.extent();
        let lane = |class, x, width| rectangle(class, x, self.y, width, layout.lane_height);
        page.append(lane("lane", layout.lane_x, layout.lane_width));
        if end > start {
            page.append(lane("bubble", layout.x(start), layout.width(end - start)));
        }
    }

    /// The micro-batch, if it fits into its box, and below it the version of the weights. The shade
    /// shows the stage.
    fn numbers(&self, span: &Span, x: f64, width: f64) -> Vec<Text> {
        let height = self.layout.lane_height;
        let number = span.action.map(|action| action.micro_batch.to_string());
        let fits = |number: &String| width >= DIGIT * number.len() as f64 + 3.0 && height > LOWEST;
        let Some(number) = number.filter(fits) else {
            return Vec::new();
        };
        let middle = x + (width - 1.0) / 2.0;
        let at = |class, y: f64, number: String| text(class, middle, self.y + y, number);
        let version = span.version.filter(|_| self.layout.shows_versions);
        match version.map(|version| version.to_string()) {
            Some(version) => vec![
                at("number", height / 2.0 - 1.5, number),
                at("number version", height - 3.5, version),
            ],
            None => vec![at("number", height / 2.0 + 3.5, number)],
        }
    }
}

fn tooltip(span: &Span) -> String {
    let what = match span.action {
        Some(action) => format!("{action} {}", span.kind),
        None => span.kind.to_string(),
    };
    let what = match span.version {
        Some(version) => format!("{what} · weights {version}"),
        None => what,
    };
    let start = duration(span.start);
    format!("{what} · at {start} · took {}", duration(span.length()))
}
