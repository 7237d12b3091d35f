//! Fills in the table of a chain whose runs all begin at its first state, without trying every cut.
//!
//! The time of a cut is the largest of three: the time of what is before it, of the stage after it, and
//! of the transfer over it. The later the cut, the less the stage takes, down to the last bit, since
//! every term is rounded in the same way. What is before a later cut mostly takes more. So the best cut
//! is near the one where the two meet. The search begins there and continues to both sides while either
//! of the two alone allows something better. It makes exact comparisons without a tolerance: the result
//! is that of trying all cuts.
//!
//! What is before a later cut may take less if it ends with a smaller transfer. So the search looks at
//! the cuts after which all others take more: their times ascend.

use std::ops::Range;

use super::{
    filler::Filler,
    minima::BlockMinima,
    table::{GroupTable, LastStage, Segment},
};

/// What is before each cut, on one number of units.
#[derive(Default)]
struct Before {
    times: BlockMinima,
    /// The cuts before which less time passes than before all later ones.
    minima: Vec<Minimum>,
}

#[derive(Clone, Copy)]
struct Minimum {
    cut: usize,
    time: f64,
}

impl Before {
    fn push(&mut self, time: f64) {
        while self.minima.pop_if(|minimum| minimum.time >= time).is_some() {}
        let cut = self.times.len();
        self.times.push(time);
        self.minima.push(Minimum { cut, time });
    }

    /// One more than the last cut before a minimum, or 0.
    fn up_to(&self, minimum: usize) -> usize {
        let before = self.minima[..minimum].last();
        before.map_or(0, |minimum| minimum.cut + 1)
    }

    /// One more than the last cut that takes at most `most`, or 0.
    fn end_within(&self, most: f64) -> usize {
        self.up_to(self.minima.partition_point(|minimum| minimum.time <= most))
    }
}

/// A last stage on `own` of the `units` of a run.
#[derive(Clone, Copy)]
struct End {
    last: usize,
    units: usize,
    own: usize,
    /// Seconds of the transfer over the end of the run.
    transfer: f64,
}

/// The best solution that was found for a run.
#[derive(Clone, Copy)]
struct Best {
    time: f64,
    /// Where the last stage is cut off, and its units. None if the run is one stage.
    cut: Option<(usize, usize)>,
}

pub(super) struct ChainFiller<'t, 'a> {
    filler: Filler<'t, 'a>,
    /// For each number of units, 0 included.
    before: Vec<Before>,
    /// Bytes over each cut.
    outputs: BlockMinima,
    /// The minimum where the search begins, by the number of units of a run and of its last stage. It
    /// never moves back.
    meetings: Vec<Vec<usize>>,
    /// The least time of all cuts of the current run, by the number of units of the last stage.
    bounds: Vec<f64>,
}

impl<'t, 'a> ChainFiller<'t, 'a> {
    pub fn new(filler: Filler<'t, 'a>) -> Self {
        let units = filler.group.units;
        Self {
            before: (0..=units).map(|_| Before::default()).collect(),
            outputs: BlockMinima::default(),
            meetings: (0..=units).map(|units| vec![0; units]).collect(),
            bounds: vec![0.0; units],
            filler,
        }
    }

    pub fn fill(mut self) -> GroupTable {
        for last in 0..self.filler.tables.states.count() {
            let all = 1..=self.filler.group.units;
            let bests: Vec<_> = all.map(|units| self.best(last, units)).collect();
            for (units, best) in (1..).zip(bests) {
                self.keep(last, units, best);
            }
            // Later runs can be cut after this state.
            let output = self.filler.tables.states.get(last).output;
            self.outputs.push(output);
        }
        self.filler.table
    }

    fn keep(&mut self, last: usize, units: usize, best: Best) {
        let cell = (self.filler.tables).cell(&self.filler.table, 0, last, units);
        self.filler.table.times[cell] = best.time;
        let (begin, own) = match best.cut {
            Some((cut, own)) => (cut + 1, own),
            None => (0, units),
        };
        self.filler.table.lasts[cell] = LastStage::new(begin, own);
        self.before[units].push(best.time);
    }

    /// The best partition of the states up to `last`.
    fn best(&mut self, last: usize, units: usize) -> Best {
        let whole = Segment {
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
        // Most units first: they allow the longest stage, which rules out the others.
        for own in (1..units).rev() {
            if self.bounds[own] <= best.time {
                self.begin_earlier(self.end(last, units, own), &mut best);
            }
        }
        best
    }

    fn end(&self, last: usize, units: usize, own: usize) -> End {
        let bytes = self.filler.tables.states.get(last).output;
        End {
            last,
            units,
            own,
            transfer: self.filler.group.transfer(bytes, own),
        }
    }

    /// Seconds of the stage behind a cut.
    fn stage(&self, end: End, cut: usize) -> f64 {
        let stage = Segment {
            begin: cut + 1,
            last: end.last,
            units: end.own,
            behind: self.filler.group.units - end.units,
        };
        self.filler.time(stage, false)
    }

    fn before(&self, end: End) -> &Before {
        &self.before[end.units - end.own]
    }

    /// Looks for a cut that takes less than the best one. Returns a lower bound of all cuts.
    fn improve(&mut self, end: End, best: &mut Best) -> f64 {
        if end.transfer >= best.time {
            return end.transfer;
        }
        let meeting = self.meetings[end.units][end.own].min(self.before(end).minima.len());
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

    /// The first minimum from a given one on whose time is at least that of the stage behind it.
    fn meeting(&self, end: End, from: usize) -> usize {
        let minima = &self.before(end).minima[from..];
        let less = |minimum: &&Minimum| minimum.time < self.stage(end, minimum.cut);
        from + minima.iter().take_while(less).count()
    }

    /// A lower bound of all cuts: those up to the previous minimum have at least its stage, all others at
    /// least the time before this minimum.
    fn bound(&self, end: End, minimum: usize) -> f64 {
        let minima = &self.before(end).minima;
        let below = minimum.checked_sub(1);
        let below = below.map_or(f64::INFINITY, |below| self.stage(end, minima[below].cut));
        let above = minima.get(minimum);
        f64::min(below, above.map_or(f64::INFINITY, |above| above.time))
    }

    /// Tries the cuts before `split`, backward until the stage is too long.
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

    /// Tries the cuts from `split` on, until what is before them is too long.
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

    /// Looks for a cut that takes as long as the best one, but comes earlier or has fewer units for the
    /// last stage.
    fn begin_earlier(&self, end: End, best: &mut Best) {
        let Some((cut, own)) = best.cut else {
            return; // uncut is preferred
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

    /// The first of these cuts whose stage takes at most `most`, or their end.
    fn first_stage_within(&self, end: End, cuts: &Range<usize>, most: f64) -> usize {
        let (mut from, mut to) = (cuts.start, cuts.end);
        let mut cut = to.saturating_sub(1); // usually even the last one's is too long
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

    /// The first of these cuts whose transfer and time before it take at most `most`.
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
