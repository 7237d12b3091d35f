//! What workers keep over time, item on item.

use std::time::Duration;

use ::svg::{
    Node,
    node::element::{Group, Path, Polyline, Style, path::Data},
};

use crate::{
    HeldBytes, MemoryAt, Simulation,
    summary::{Shown, format_bytes},
    timeline::label,
};

use super::{LEGEND_Y, MARGIN, TITLE_Y, WIDTH, axis, empty_page, legend, line, rectangle, text};

/// More rows are hard to compare.
const MOST_ROWS: usize = 16;
const FIRST_ROW_Y: f64 = LEGEND_Y + 24.0;
const LANE_HEIGHT: f64 = 72.0;
const PITCH: f64 = LANE_HEIGHT + 16.0;
const LANE_X: f64 = 120.0;
/// Right of the lanes: the peak.
const LANE_WIDTH: f64 = WIDTH - LANE_X - 184.0;
/// Only in this picture. The colours are seen on light and dark pages.
const LIMIT: &str = ".limit { stroke: #768390; stroke-width: 1.5; stroke-dasharray: 6 4; } \
    .over.limit { stroke: #e5534b; }";
/// Only where there is such a line.
const MEASURED: &str = ".measured { fill: none; stroke: #57606a; stroke-width: 1.5; }";
const LINE_PITCH: f64 = 16.0;
/// From the lowest to the highest, with the class of its colour.
const ITEMS: [(&str, &str); 6] = [
    ("update", "always kept"),
    ("input", "gradients"),
    ("recompute", "inputs"),
    ("forward", "activations"),
    ("weight", "until the gradients of weights"),
    ("backward", "workspace"),
];

impl Simulation<'_> {
    /// An SVG picture of memory over time: for each worker a row with what it [always
    /// keeps](Self::fixed_memory), and on it the items of [`memory`](Self::memory). All rows have one scale.
    ///
    /// `labels` name the workers, and `limits` are the bytes that each may keep, as a line; both may be shorter.
    /// Of many workers, only the first and last ones are drawn. `measured` are seconds since the start of a step, in
    /// order, and the bytes that all workers had together then. If there are any, a last row has the sum of all workers
    /// and these as a line, in its own scale.
    ///
    /// ```
    /// use stovepipe_schedule::{Costs, OneForwardOneBackward, Scheduler};
    ///
    /// let mut costs = Costs::uniform(2, 1.0, 1.0, 1.0);
    /// costs.stages[0].memory.activations = 1024.0;
    /// let schedule = OneForwardOneBackward.schedule(2, 4)?;
    /// let simulation = schedule.simulate(&costs)?;
    /// let picture = simulation.memory_to_svg(&[], &[Some(4096.0)], &[]);
    /// assert!(picture.contains("peak 2.0 KiB of 4.0 KiB"), "{picture}");
    /// let picture = simulation.memory_to_svg(&[], &[], &[(0.0, 512.0), (1.0, 3072.0)]);
    /// assert!(picture.contains("measured 3.0 KiB"), "{picture}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn memory_to_svg(
        &self,
        labels: &[String],
        limits: &[Option<f64>],
        measured: &[(f64, f64)],
    ) -> String {
        let (fixed, memory, peaks) = (self.fixed_memory(), self.memory(), self.peak_memory());
        let limit = |worker: usize| limits.get(worker).copied().flatten();
        let limited = (0..peaks.len()).filter_map(limit);
        let scale = peaks.iter().copied().chain(limited).fold(0.0, f64::max);
        let shown = Shown::of(peaks.len(), MOST_ROWS);
        let rows = shown.workers().count() + usize::from(!measured.is_empty());
        let end = FIRST_ROW_Y + PITCH * rows as f64;
        let title = title(&peaks, labels);
        let seconds = measured.last().map_or(0.0, |&(seconds, _)| seconds);
        let seconds = seconds.max(self.step_time());

        let mut body = Group::new();
        body.append(text("title", MARGIN, TITLE_Y, title.as_str()));
        // Not each simulation knows these.
        let has =
            |item: fn(&HeldBytes) -> f64| memory.iter().flatten().any(|at| item(&at.held) > 0.0);
        let is_known = [
            true,
            has(|held| held.gradients),
            true,
            true,
            true,
            has(|held| held.workspace),
        ];
        let items: Vec<_> = (0..ITEMS.len()).filter(|&item| is_known[item]).collect();
        let shown_items: Vec<_> = items.iter().map(|&item| ITEMS[item]).collect();
        legend::draw_items(&mut body, &shown_items, LEGEND_Y);
        let chart = |row: usize, scale| Chart {
            bottom: FIRST_ROW_Y + PITCH * row as f64 + LANE_HEIGHT,
            seconds,
            scale,
        };
        for (row, worker) in shown.workers().enumerate() {
            let chart = chart(row, scale);
            chart.draw(&mut body, &items, fixed[worker], &memory[worker]);
            chart.label(&mut body, label(labels, worker));
            let mut peak = format!("peak {}", bytes(peaks[worker]));
            if let Some(limit) = limit(worker) {
                let y = chart.y(limit);
                let class = if peaks[worker] > limit {
                    "over limit"
                } else {
                    "limit"
                };
                body.append(line(class, (LANE_X, y), (LANE_X + LANE_WIDTH, y)));
                peak += &format!(" of {}", bytes(limit));
            }
            chart.notes(&mut body, &[peak]);
        }
        if let Some(gap) = shown.gap() {
            let y = FIRST_ROW_Y + PITCH * shown.first.end as f64 - 4.0;
            body.append(text("gap", WIDTH / 2.0, y, gap));
        }
        if !measured.is_empty() {
            let (fixed, memory) = (fixed.iter().sum::<f64>(), self.memory_of_all());
            let held = memory.iter().map(|at| at.held.total());
            let peak = fixed + held.fold(0.0, f64::max);
            let most = measured.iter().map(|&(_, bytes)| bytes).fold(0.0, f64::max);
            let chart = chart(rows - 1, peak.max(most));
            chart.draw(&mut body, &items, fixed, &memory);
            chart.draw_line(&mut body, measured);
            chart.label(&mut body, "all workers".to_owned());
            let lines = [
                format!("peak {}", bytes(peak)),
                format!("measured {}", bytes(most)),
            ];
            chart.notes(&mut body, &lines);
        }
        let length = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        axis::draw(&mut body, (LANE_X, end), LANE_WIDTH, length);
        let page = empty_page(end + axis::HEIGHT).set("aria-label", title);
        let style = match measured {
            [] => LIMIT.to_owned(),
            _ => format!("{LIMIT} {MEASURED}"),
        };
        page.add(Style::new(style)).add(body).to_string()
    }
}

fn title(peaks: &[f64], labels: &[String]) -> String {
    let workers = 0..peaks.len();
    let fullest = workers
        .rev()
        .max_by(|&one, &other| peaks[one].total_cmp(&peaks[other]));
    let of = |worker| {
        format!(
            "at most {} on {}",
            bytes(peaks[worker]),
            label(labels, worker)
        )
    };
    format!(
        "memory over time: {}",
        fullest.map_or_else(|| "no workers".to_owned(), of)
    )
}

fn bytes(bytes: f64) -> String {
    format_bytes(bytes.max(0.0) as u64)
}

/// A worker's row.
struct Chart {
    bottom: f64,
    /// The length of the step.
    seconds: f64,
    /// The bytes at the top of the lane.
    scale: f64,
}

impl Chart {
    fn y(&self, bytes: f64) -> f64 {
        let share = if self.scale > 0.0 {
            bytes / self.scale
        } else {
            0.0
        };
        self.bottom - LANE_HEIGHT * share
    }

    fn draw(&self, page: &mut Group, items: &[usize], fixed: f64, memory: &[MemoryAt]) {
        let top = self.bottom - LANE_HEIGHT;
        page.append(rectangle("lane", LANE_X, top, LANE_WIDTH, LANE_HEIGHT));
        let columns = self.columns(memory);
        let stacked = |held: &HeldBytes| {
            let mut sum = fixed;
            let items = [
                0.0,
                held.gradients,
                held.inputs,
                held.activations,
                held.contexts,
                held.workspace,
            ];
            items.map(|item| {
                sum += item;
                sum
            })
        };
        // From the highest: each is drawn over by the next.
        for &item in items.iter().rev() {
            let mut data = Data::new().move_to((LANE_X, super::round(self.bottom)));
            let mut last = f64::NAN;
            for (column, held) in columns.iter().enumerate() {
                let y = super::round(self.y(stacked(held)[item]));
                if y != last {
                    data = data
                        .horizontal_line_to(LANE_X + column as f64)
                        .vertical_line_to(y);
                    last = y;
                }
            }
            let right = LANE_X + columns.len() as f64;
            data = data
                .horizontal_line_to(right)
                .vertical_line_to(super::round(self.bottom));
            page.append(
                Path::new()
                    .set("class", ITEMS[item].0)
                    .set("d", data.close()),
            );
        }
    }

    fn label(&self, page: &mut Group, words: String) {
        let middle = self.bottom - 0.5 * LANE_HEIGHT + 4.0;
        page.append(text("label", MARGIN, middle, words));
    }

    fn notes(&self, page: &mut Group, lines: &[String]) {
        let middle = self.bottom - 0.5 * LANE_HEIGHT + 4.0;
        for (line, words) in lines.iter().enumerate() {
            let y = middle + LINE_PITCH * line as f64;
            page.append(text("note", LANE_X + LANE_WIDTH + 8.0, y, words.as_str()));
        }
    }

    /// Draws measured bytes: for each pixel, the most of it.
    fn draw_line(&self, page: &mut Group, measured: &[(f64, f64)]) {
        let mut columns = vec![0.0_f64; LANE_WIDTH as usize];
        let last = columns.len() - 1;
        for &(seconds, bytes) in measured {
            let column = self.pixel(seconds, last);
            columns[column] = columns[column].max(bytes);
        }
        let known = columns
            .iter()
            .enumerate()
            .filter(|(_, bytes)| **bytes > 0.0);
        let points = known.map(|(column, &bytes)| {
            let (x, y) = (LANE_X + column as f64 + 0.5, super::round(self.y(bytes)));
            format!("{x},{y}")
        });
        let points = points.collect::<Vec<_>>().join(" ");
        page.append(
            Polyline::new()
                .set("class", "measured")
                .set("points", points),
        );
    }

    /// The column of a moment, of columns up to `last`.
    fn pixel(&self, seconds: f64, last: usize) -> usize {
        let share = (seconds / self.seconds).clamp(0.0, 1.0);
        ((share * (last + 1) as f64) as usize).min(last)
    }

    /// For each pixel, what is kept when the sum is largest.
    fn columns(&self, memory: &[MemoryAt]) -> Vec<HeldBytes> {
        let mut columns = vec![HeldBytes::default(); LANE_WIDTH as usize];
        if self.seconds <= 0.0 {
            return columns;
        }
        let last = columns.len() - 1;
        let pixel = |seconds: f64| self.pixel(seconds, last);
        let ends = memory
            .iter()
            .skip(1)
            .map(|at| at.seconds)
            .chain([self.seconds]);
        let spans: Vec<_> = memory
            .iter()
            .zip(ends)
            .map(|(at, end)| (pixel(at.seconds), pixel(end), at.held))
            .collect();
        for (first, last, held) in spans {
            for column in &mut columns[first..last.max(first + 1)] {
                if held.total() >= column.total() {
                    *column = held;
                }
            }
        }
        columns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64, activations: f64) -> MemoryAt {
        let held = HeldBytes {
            activations,
            ..HeldBytes::default()
        };
        MemoryAt { seconds, held }
    }

    #[test]
    fn a_pixel_has_the_most_that_is_kept_in_it() {
        let chart = Chart {
            bottom: 100.0,
            seconds: LANE_WIDTH.floor(),
            scale: 8.0,
        };
        // A pixel a second.
        let memory = [at(0.0, 1.0), at(2.0, 5.0), at(2.5, 3.0), at(4.0, 0.0)];
        let columns = chart.columns(&memory);
        let found: Vec<_> = columns[..6].iter().map(|held| held.total()).collect();
        assert_eq!(found, [1.0, 1.0, 5.0, 3.0, 0.0, 0.0]);
        assert_eq!(
            [0.0, 4.0, 8.0].map(|bytes| chart.y(bytes)),
            [100.0, 64.0, 28.0]
        );
    }
}
