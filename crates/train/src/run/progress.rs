//! Shows progress: bars on a terminal, lines elsewhere.

use std::{
    fmt,
    io::{self, IsTerminal, Write},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use console::Term;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};
use stovepipe_schedule::count;

/// How often a terminal is drawn in a second.
const HZ: u8 = 20;

/// Time between two lines within an epoch.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Shows on standard error how many layers are measured, for
/// [`Profiler::on_progress`](stovepipe_pipeline::Profiler::on_progress).
pub fn show_layers(what: &str, layers: usize) -> impl Fn(usize) + Send + Sync + 'static {
    show_count(&format!("{what}: measuring"), "layer", layers)
}

/// Shows on standard error how many of a number of things are done: a bar with an estimate if that is a terminal,
/// else one line at the start.
pub fn show_count(doing: &str, thing: &str, number: usize) -> impl Fn(usize) + Send + Sync + use<> {
    let doing = format!("{doing} {}", count(number, thing));
    let bar = if io::stderr().is_terminal() {
        ProgressBar::with_draw_target(Some(number as u64), Screen::stderr())
    } else {
        let _ = writeln!(io::stderr(), "{doing}");
        ProgressBar::hidden()
    };
    let style = ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len}, {eta} left");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar.set_message(doing);
    move |done| {
        bar.set_position(done as u64);
        if done == number {
            bar.finish_and_clear();
        }
    }
}

/// Shows the progress of a run: its epochs, and the current part of an epoch.
pub struct Progress {
    renderer: Renderer,
    /// What the run consists of, and how many.
    epochs: (String, usize),
    /// What the current part of an epoch consists of, and how many.
    part: (String, usize),
    estimate: Estimate,
}

enum Renderer {
    Lines {
        last: Instant,
        out: Box<dyn Write + Send + Sync>,
    },
    Bars {
        both: MultiProgress,
        epochs: ProgressBar,
        part: ProgressBar,
    },
}

impl Progress {
    /// Shows a run of `epochs` with `batches` mini-batches each on standard error: bars if that is a
    /// terminal, else lines.
    #[must_use]
    pub fn new(epochs: usize, batches: usize) -> Self {
        let mut progress = Self::stderr();
        progress.begin("epoch", epochs);
        progress.part("batch", batches);
        progress
    }

    /// Like [`new`](Self::new), for a run that will [begin](Self::begin) later.
    #[must_use]
    pub fn stderr() -> Self {
        if io::stderr().is_terminal() {
            return Self::drawn(Screen::stderr());
        }
        Self::written(io::stderr())
    }

    /// Shows nothing.
    #[must_use]
    pub fn silent() -> Self {
        Self::written(io::sink())
    }

    /// Bars on `target`, for a run that will [begin](Self::begin) later.
    #[must_use]
    pub fn drawn(target: ProgressDrawTarget) -> Self {
        Self::of(bars(target))
    }

    /// Lines, for a run that will [begin](Self::begin) later. Ignores errors of `out`.
    ///
    /// ```
    /// use stovepipe_train::Progress;
    ///
    /// let mut progress = Progress::written(std::io::stdout());
    /// progress.begin("epoch", 2);
    /// progress.part("batch", 30);
    /// progress.at(1, 10, "loss 2.3"); // a line every ten seconds
    /// progress.epoch(1, "loss 1.9"); // epoch 1/2: loss 1.9 · 3 s left
    /// progress.finish();
    /// ```
    #[must_use]
    pub fn written(out: impl Write + Send + Sync + 'static) -> Self {
        Self::of(Renderer::Lines {
            last: Instant::now(),
            out: Box::new(out),
        })
    }

    fn of(renderer: Renderer) -> Self {
        Self {
            renderer,
            epochs: (String::new(), 0),
            part: (String::new(), 0),
            estimate: Estimate::default(),
        }
    }

    /// Starts a run of so many epochs, or of something else by `name`.
    pub fn begin(&mut self, name: &str, epochs: usize) {
        self.epochs = (name.to_owned(), epochs);
        self.estimate = Estimate::default();
        match &mut self.renderer {
            Renderer::Lines { last, .. } => *last = Instant::now(),
            Renderer::Bars { epochs: bar, .. } => {
                bar.reset();
                bar.set_length(epochs as u64);
                bar.set_prefix(name.to_owned());
                bar.set_message(self.estimate.to_string());
                bar.enable_steady_tick(Duration::from_millis(500));
            }
        }
    }

    /// Starts a part of an epoch, such as training or a test, of `length` things by `name`. The first
    /// part of an epoch gives the estimate of the time left.
    pub fn part(&mut self, name: &str, length: usize) {
        self.part = (name.to_owned(), length);
        if let Renderer::Bars { part, .. } = &self.renderer {
            part.reset();
            part.set_length(length as u64);
            part.set_prefix(name.to_owned());
            part.set_message("");
        }
    }

    /// Shows that `done` of the current part of epoch `epoch`, counted from 1, is over, and `text`.
    pub fn at(&mut self, epoch: usize, done: usize, text: &str) {
        let ((unit, epochs), (name, length)) = (&self.epochs, &self.part);
        let of_epoch = done as f64 / (*length).max(1) as f64;
        let over = epoch.saturating_sub(1) as f64 + of_epoch;
        self.estimate.reach(over / (*epochs).max(1) as f64);
        match &mut self.renderer {
            Renderer::Lines { last, out } => {
                if last.elapsed() >= LINE_INTERVAL {
                    *last = Instant::now();
                    let (done, left) = (format!("{name} {done}/{length}"), &self.estimate);
                    let _ = writeln!(out, "{unit} {epoch}, {done}: {text} · {left} left");
                }
            }
            Renderer::Bars { epochs, part, .. } => {
                epochs.set_message(self.estimate.to_string());
                part.set_position(done as u64);
                part.set_message(text.to_owned());
            }
        }
    }

    /// Shows that an epoch is over, and `text`.
    pub fn epoch(&mut self, epoch: usize, text: &str) {
        let (unit, epochs) = &self.epochs;
        let line = format!("{unit} {epoch}/{epochs}: {text}");
        self.estimate.reach(epoch as f64 / (*epochs).max(1) as f64);
        match &mut self.renderer {
            Renderer::Lines { last, out } => {
                *last = Instant::now();
                let _ = writeln!(out, "{line} · {} left", self.estimate);
            }
            Renderer::Bars { epochs, part, .. } => {
                epochs.println(line);
                epochs.set_position(epoch as u64);
                part.reset();
            }
        }
    }

    /// Shows a line, which stays.
    pub fn say(&mut self, line: &str) {
        match &mut self.renderer {
            Renderer::Lines { out, .. } => {
                let _ = writeln!(out, "{line}");
            }
            Renderer::Bars { epochs, .. } => epochs.println(line),
        }
    }

    /// Ends the run. Another one may [begin](Self::begin).
    pub fn finish(&mut self) {
        if let Renderer::Bars { epochs, part, .. } = &self.renderer {
            part.finish_and_clear();
            epochs.finish_and_clear();
        }
    }

    /// Ends a run that failed. Bars stay: clearing them could clear an error message below them.
    pub fn abandon(&mut self) {
        if let Renderer::Bars { both, .. } = &self.renderer {
            both.set_draw_target(ProgressDrawTarget::hidden());
        }
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress").finish_non_exhaustive()
    }
}

/// A terminal that drops what cannot be written: its own buffer would keep it, and grow.
#[derive(Debug)]
struct Screen<T> {
    term: Mutex<T>,
    new: fn() -> T,
}

impl Screen<Term> {
    fn stderr() -> ProgressDrawTarget {
        ProgressDrawTarget::term_like_with_hz(Box::new(Self::new(Term::buffered_stderr)), HZ)
    }
}

impl<T: TermLike> Screen<T> {
    fn new(new: fn() -> T) -> Self {
        let term = Mutex::new(new());
        Self { term, new }
    }

    fn term(&self) -> MutexGuard<'_, T> {
        self.term.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: TermLike> TermLike for Screen<T> {
    fn width(&self) -> u16 {
        self.term().width()
    }

    fn height(&self) -> u16 {
        self.term().height()
    }

    fn move_cursor_up(&self, lines: usize) -> io::Result<()> {
        self.term().move_cursor_up(lines)
    }

    fn move_cursor_down(&self, lines: usize) -> io::Result<()> {
        self.term().move_cursor_down(lines)
    }

    fn move_cursor_right(&self, columns: usize) -> io::Result<()> {
        self.term().move_cursor_right(columns)
    }

    fn move_cursor_left(&self, columns: usize) -> io::Result<()> {
        self.term().move_cursor_left(columns)
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.term().write_line(text)
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.term().write_str(text)
    }

    fn clear_line(&self) -> io::Result<()> {
        self.term().clear_line()
    }

    fn flush(&self) -> io::Result<()> {
        let mut term = self.term();
        term.flush().inspect_err(|_| *term = (self.new)())
    }
}

/// Estimates how long the rest of a run will take.
#[derive(Default)]
struct Estimate {
    /// When the first step was over, and the share of the run that was over then: a resumed run
    /// starts in the middle.
    first: Option<(Instant, f64)>,
    /// The share that is over now.
    reached: f64,
}

impl Estimate {
    fn reach(&mut self, share: f64) {
        self.first.get_or_insert((Instant::now(), share));
        self.reached = self.reached.max(share);
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let left = (1.0 - self.reached).max(0.0);
        match self.first {
            _ if left == 0.0 => f.write_str("0 s"),
            Some((started, first)) if self.reached > first => {
                let seconds = started.elapsed().as_secs_f64() * left / (self.reached - first);
                write!(f, "{seconds:.0} s")
            }
            _ => f.write_str("some time"),
        }
    }
}

fn bars(target: ProgressDrawTarget) -> Renderer {
    let both = MultiProgress::with_draw_target(target);
    let bar = |template: &str| {
        let bar = both.add(ProgressBar::new(0));
        // The templates below parse.
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar
    };
    let epochs = bar("{prefix:6} {bar:30.cyan/dim} {pos}/{len} · {elapsed} · {msg} left");
    let part = bar("{prefix:6} {bar:30.green/dim} {pos}/{len} · {wide_msg}");
    Renderer::Bars { both, epochs, part }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// A terminal that is gone: it keeps what it is given, and cannot write it.
    #[derive(Debug, Default)]
    struct Gone(Mutex<String>);

    impl TermLike for Gone {
        fn width(&self) -> u16 {
            80
        }

        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            self.write_str("up")
        }

        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            self.write_str("down")
        }

        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            self.write_str("right")
        }

        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            self.write_str("left")
        }

        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)
        }

        fn write_str(&self, text: &str) -> io::Result<()> {
            self.0.lock().unwrap().push_str(text);
            Ok(())
        }

        fn clear_line(&self) -> io::Result<()> {
            self.write_str("clear")
        }

        fn flush(&self) -> io::Result<()> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
    }

    #[test]
    fn what_a_lost_terminal_does_not_take_is_not_kept() {
        let screen = Screen::new(Gone::default);
        for number in 0..1000 {
            screen.write_line(&format!("line {number}")).unwrap();
            screen.clear_line().unwrap();
            screen.flush().unwrap_err();
            assert_eq!(*screen.term().0.lock().unwrap(), "");
        }
    }

    #[test]
    fn the_time_left_counts_from_where_a_run_resumed() {
        let ago = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds));
        let check = |first: f64, reached: f64, expected: &str| {
            let first = ago(100).map(|started| (started, first));
            let estimate = Estimate { first, reached };
            assert_eq!(estimate.to_string(), expected);
        };
        check(0.0, 0.25, "300 s");
        check(0.5, 0.75, "100 s");
        check(0.5, 0.5, "some time");
        check(0.5, 1.0, "0 s");
        let mut estimate = Estimate::default();
        estimate.reach(0.5);
        estimate.reach(0.25); // a test after training
        assert_eq!(estimate.reached, 0.5);
    }
}
