//! Fills in the table of a chain whose runs all begin at its first state, without trying every cut.
//!
//! What a cut takes is the most of three: the time of what is before it, the time of the stage
//! behind it, and the transfer over it. The later the cut, the less the stage takes; that never
//! fails, even in the last bit, since every step of the reckoning is rounded the same way. And in
//! the main, the more takes what is before. So the best cut is near the one where the two meet. The
//! search begins there, and goes on to either side for as long as one of the two alone leaves room
//! for something better. It compares what it would have to compare anyway, without any tolerance:
//! the result is that of trying them all.
//!
//! What is before a cut may take less than before an earlier one, if it ends with a smaller transfer.
//! So the search looks at the cuts after which all others take more, which are a rising row.

use std::ops::Range;

use super::{Filler, Last, Stage, Table, row::Row};

/// What is before each cut, on one number of units.
#[derive(Default)]
struct Before {
    times: Row,
    /// The cuts that take less than all later ones.
    steps: Vec<Step>,
}

#[derive(Clone, Copy)]
struct Step {
    cut: usize,
    time: f64,
}

impl Before {
    fn push(&mut self, time: f64) {
        while self.steps.pop_if(|step| step.time >= time).is_some() {}
        let cut = self.times.len();
        self.times.push(time);
        self.steps.push(Step { cut, time });
    }

    /// One more than the last cut before a step; 0 if there is none.
    fn up_to(&self, step: usize) -> usize {
        self.steps[..step].last().map_or(0, |step| step.cut + 1)
    }

    /// One more than the last cut that takes no more than `most`; 0 if there is none.
    fn end_within(&self, most: f64) -> usize {
        self.up_to(self.steps.partition_point(|step| step.time <= most))
    }
}

/// A last stage on so many units, of a run on more of them.
#[derive(Clone, Copy)]
struct End {
    last: usize,
    units: usize,
    own: usize,
    /// Seconds of the transfer over the end of the run, which no cut avoids.
    transfer: f64,
}

/// The best solution that was found for a run.
#[derive(Clone, Copy)]
struct Best {
    time: f64,
    /// Where the last stage is cut off, and its units; none if the run is one stage.
    cut: Option<(usize, usize)>,
}

pub(super) struct Chain<'p, 'a> {
    filler: Filler<'p, 'a>,
    /// For each number of units, 0 included.
    before: Vec<Before>,
    /// Bytes over each cut.
    outputs: Row,
    /// The step where the search begins, for each number of units of a run and of its last stage.
    /// With later ends, that is never an earlier one.
    meetings: Vec<Vec<usize>>,
    /// What the cuts of the run at hand take at least, for each number of units of the last stage.
    bounds: Vec<f64>,
}

impl<'p, 'a> Chain<'p, 'a> {
    pub fn new(filler: Filler<'p, 'a>) -> Self {
        let units = filler.group.units;
        Self {
            before: (0..=units).map(|_| Before::default()).collect(),
            outputs: Row::default(),
            meetings: (0..=units).map(|units| vec![0; units]).collect(),
            bounds: vec![0.0; units],
            filler,
        }
    }

    pub fn fill(mut self) -> Table {
        for last in 0..self.filler.planner.states.count() {
            for units in 1..=self.filler.group.units {
                let best = self.best(last, units);
                self.keep(last, units, best);
            }
            self.now_before(last);
        }
        self.filler.table
    }

    fn keep(&mut self, last: usize, units: usize, best: Best) {
        let cell = self.cell(last, units);
        self.filler.table.times[cell] = best.time;
        let (begin, own) = match best.cut {
            Some((cut, own)) => (cut + 1, own),
            None => (0, units),
        };
        self.filler.table.lasts[cell] = Last {
            begin: begin as u32,
            units: own as u32,
        };
    }

    /// Later runs can be cut after this state.
    fn now_before(&mut self, last: usize) {
        for units in 1..=self.filler.group.units {
            let time = self.filler.table.times[self.cell(last, units)];
            self.before[units].push(time);
        }
        let output = self.filler.planner.states.get(last).output;
        self.outputs.push(output);
    }

    fn cell(&self, last: usize, units: usize) -> usize {
        self.filler.planner.cell(&self.filler.table, 0, last, units)
    }

    /// The best way to do the states up to `last`.
    fn best(&mut self, last: usize, units: usize) -> Best {
        let whole = Stage {
            begin: 0,
            last,
            units,
            behind: self.filler.group.units - units,
        };
        let mut best = Best {
            time: self.filler.time(whole, true),
            cut: None,
        };
        for own in 1..units {
            self.bounds[own] = self.improve(self.end(last, units, own), &mut best);
        }
        // Most units first: they can do the longest stage, and the others are soon done with.
        for own in (1..units).rev() {
            if self.bounds[own] <= best.time {
                self.begin_earlier(self.end(last, units, own), &mut best);
            }
        }
        best
    }

    fn end(&self, last: usize, units: usize, own: usize) -> End {
        let bytes = self.filler.planner.states.get(last).output;
        End {
            last,
            units,
            own,
            transfer: self.filler.group.transfer(bytes, own),
        }
    }

    /// Seconds of the stage behind a cut.
    fn stage(&self, end: End, cut: usize) -> f64 {
        let stage = Stage {
            begin: cut + 1,
            last: end.last,
            units: end.own,
            behind: self.filler.group.units - end.units,
        };
        self.filler.time(stage, false)
    }

    /// What is before the last stage.
    fn before(&self, end: End) -> &Before {
        &self.before[end.units - end.own]
    }

    /// Looks for the cut that takes least, if it is less than the best one takes. Returns a bound:
    /// no cut takes less than that.
    fn improve(&mut self, end: End, best: &mut Best) -> f64 {
        if end.transfer >= best.time {
            return end.transfer;
        }
        let meeting = self.meetings[end.units][end.own].min(self.before(end).steps.len());
        let bound = self.bound(end, meeting);
        if bound >= best.time {
            return bound;
        }
        let meeting = self.meeting(end, meeting);
        self.meetings[end.units][end.own] = meeting;
        let bound = self.bound(end, meeting);
        if bound < best.time {
            let split = self.before(end).up_to(meeting);
            self.improve_below(end, split, best);
            self.improve_above(end, split, best);
        }
        bound
    }

    /// The first step, from a given one on, whose time is no less than that of the stage behind it.
    fn meeting(&self, end: End, from: usize) -> usize {
        let steps = &self.before(end).steps[from..];
        let less = |step: &&Step| step.time < self.stage(end, step.cut);
        from + steps.iter().take_while(less).count()
    }

    /// What a cut takes at least: those up to the step before this one have no shorter stage than
    /// that, and the later ones have no less before them than this one.
    fn bound(&self, end: End, step: usize) -> f64 {
        let steps = &self.before(end).steps;
        let below = match step.checked_sub(1) {
            Some(below) => self.stage(end, steps[below].cut),
            None => f64::INFINITY,
        };
        let above = steps.get(step).map_or(f64::INFINITY, |step| step.time);
        f64::min(below, above)
    }

    /// Tries the cuts before `split`, from the last one to the first that leaves too long a stage.
    fn improve_below(&self, end: End, split: usize, best: &mut Best) {
        let mut cuts = 0..split;
        while let Some(nearest) = cuts.end.checked_sub(1) {
            let most = best.time.next_down();
            if end.transfer > most || self.stage(end, nearest) > most {
                return;
            }
            let Some(cut) = self.last_within(end, &cuts, most) else {
                return;
            };
            self.consider(end, cut, best);
            cuts.end = cut;
        }
    }

    /// Tries the cuts from `split` on, to the last one with little enough before it.
    fn improve_above(&self, end: End, split: usize, best: &mut Best) {
        let mut cuts = split..split;
        while end.transfer < best.time {
            let most = best.time.next_down();
            cuts.end = self.before(end).end_within(most);
            if cuts.is_empty() {
                return;
            }
            if self.stage(end, cuts.start) > most {
                cuts.start = self.first_stage_within(end, &cuts, most);
            }
            let Some(cut) = self.first_within(end, &cuts, most) else {
                return;
            };
            self.consider(end, cut, best);
            cuts.start = cut + 1;
        }
    }

    /// Takes a cut if it is better.
    fn consider(&self, end: End, cut: usize, best: &mut Best) {
        let transfer = self.filler.group.transfer(self.outputs.get(cut), end.own);
        let known = f64::max(self.before(end).times.get(cut), transfer);
        let known = f64::max(known, end.transfer);
        let time = f64::max(known, self.stage(end, cut));
        if time < best.time {
            *best = Best {
                time,
                cut: Some((cut, end.own)),
            };
        }
    }

    /// Looks for a cut that takes as long as the best one, but is before it, or leaves fewer units
    /// to the last stage.
    fn begin_earlier(&self, end: End, best: &mut Best) {
        let Some((cut, own)) = best.cut else {
            return; // uncut is best of all
        };
        let behind = if end.own < own { cut + 1 } else { cut };
        let cuts = self.first_stage_within(end, &(0..behind), best.time)..behind;
        if cuts.is_empty() || end.transfer > best.time {
            return;
        }
        if let Some(cut) = self.first_within(end, &cuts, best.time) {
            best.cut = Some((cut, end.own));
        }
    }

    /// The first of these cuts whose stage takes no more than `most`; the end if none does.
    fn first_stage_within(&self, end: End, cuts: &Range<usize>, most: f64) -> usize {
        let Range {
            start: mut from,
            end: mut to,
        } = *cuts;
        let mut cut = to.saturating_sub(1); // most often, even the last one's is too long
        while from < to {
            if self.stage(end, cut) <= most {
                to = cut;
            } else {
                from = cut + 1;
            }
            cut = from.midpoint(to);
        }
        from
    }

    /// The first cut, of these, over which the transfer and before which the rest takes no more
    /// than `most`.
    fn first_within(&self, end: End, cuts: &Range<usize>, most: f64) -> Option<usize> {
        let (before, small) = (&self.before(end).times, self.small_transfer(end, most));
        let mut cuts = cuts.clone();
        loop {
            cuts.start = before.first(&cuts, |time| time <= most)?;
            let cut = self.outputs.first(&cuts, &small)?;
            if cut == cuts.start {
                return Some(cut);
            }
            cuts.start = cut;
        }
    }

    /// The last such cut.
    fn last_within(&self, end: End, cuts: &Range<usize>, most: f64) -> Option<usize> {
        let (before, small) = (&self.before(end).times, self.small_transfer(end, most));
        let mut cuts = cuts.clone();
        loop {
            cuts.end = before.last(&cuts, |time| time <= most)? + 1;
            let cut = self.outputs.last(&cuts, &small)?;
            if cut + 1 == cuts.end {
                return Some(cut);
            }
            cuts.end = cut + 1;
        }
    }

    fn small_transfer(&self, end: End, most: f64) -> impl Fn(f64) -> bool {
        let group = self.filler.group;
        move |bytes| group.transfer(bytes, end.own) <= most
    }
}
