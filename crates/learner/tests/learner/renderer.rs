//! What the bars show.

use std::io;

use burn_train::EvaluatorBuilder;
use indicatif::{ProgressDrawTarget, TermLike};

use crate::*;

#[test]
fn lines_say_what_metrics_say() {
    let directory = tempfile::tempdir().unwrap();
    let written = Written::default();
    let result = training(directory.path(), 2)
        .renderer(Box::new(Bars::written(written.clone())))
        .launch(learner(pipeline(2)));
    let text = written.text();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].starts_with("epoch 1/2: train Accuracy "), "{text}");
    assert!(lines[1].ends_with(" · 0 s left"), "{text}");

    // The share that is right, counted by hand.
    let items = items(1000, 30);
    let (points, quarters) = PointBatcher.batch(items, &Device::flex());
    let logits = result.model.pipeline().infer(points).unwrap();
    let right = logits.argmax(1).squeeze_dim::<1>(1).equal(quarters);
    let right: i64 = right.int().sum().into_scalar();
    let accuracy = format!(
        "| valid Accuracy {:.2} % · Loss ",
        100.0 * right as f64 / 30.0
    );
    assert!(lines[1].contains(&accuracy), "{text}\n{accuracy}");
}

#[test]
fn a_resumed_training_counts_on() {
    let directory = tempfile::tempdir().unwrap();
    let written = Written::default();
    let training = |epochs| training(directory.path(), epochs).with_default_checkpointers();
    training(1).launch(learner(pipeline(2)));
    training(2)
        .checkpoint(1)
        .renderer(Box::new(Bars::written(written.clone())))
        .launch(learner(pipeline(2)));
    let text = written.text();
    assert!(text.starts_with("epoch 2/2: "), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn an_evaluation_has_a_line_for_each_test() {
    let directory = tempfile::tempdir().unwrap();
    let written = Written::default();
    let evaluator = EvaluatorBuilder::new(directory.path())
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .with_application_logger(None)
        .renderer(Box::new(Bars::written(written.clone())))
        .build(model(pipeline(2)));
    evaluator.eval("held out", loader(items(1000, 30)));
    let text = written.text();
    assert!(text.starts_with("test 1/1: held out Accuracy "), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

/// A terminal that keeps what is written to it.
#[derive(Clone, Debug, Default)]
struct Terminal(Arc<Mutex<String>>);

impl Terminal {
    fn add(&self, text: &str) -> io::Result<()> {
        self.0.lock().unwrap().push_str(text);
        Ok(())
    }
}

impl TermLike for Terminal {
    fn width(&self) -> u16 {
        120
    }

    fn move_cursor_up(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_down(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_right(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_left(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.add(&format!("{text}\n"))
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.add(text)
    }

    fn clear_line(&self) -> io::Result<()> {
        self.add("\n")
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn bars_show_epochs_and_the_split_under_way() {
    let directory = tempfile::tempdir().unwrap();
    let terminal = Terminal::default();
    let target = ProgressDrawTarget::term_like(Box::new(terminal.clone()));
    training(directory.path(), 2)
        .renderer(Box::new(Bars::drawn(target)))
        .launch(learner(pipeline(2)));
    let shown = terminal.0.lock().unwrap().clone();
    let has = |parts: &[&str]| {
        let mut lines = shown.lines();
        lines.any(|line| parts.iter().all(|part| line.contains(part)))
    };
    assert!(has(&["epoch ", "0/2", " left"]), "{shown}");
    assert!(has(&["train ", "/50 ", "Accuracy "]), "{shown}");
    assert!(
        has(&["epoch 1/2: train Accuracy ", "| valid Accuracy "]),
        "{shown}"
    );
}
