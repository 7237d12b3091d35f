//! The texts of the bars.

use std::io;

use burn_train::EvaluatorBuilder;
use indicatif::{ProgressDrawTarget, TermLike};

use crate::*;

#[test]
fn lines_have_the_metrics() {
    let directory = tempfile::tempdir().unwrap();
    let (training, written) = written(training(directory.path(), 2));
    let result = training.launch(learner(pipeline(2)));
    let text = written.text();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].starts_with("epoch 1/2: train Accuracy "), "{text}");
    assert!(lines[1].ends_with(" · 0 s left"), "{text}");

    // The accuracy, computed again.
    let (points, quarters) = PointBatcher.batch(items(1000, 30), &Device::flex());
    let logits = result.model.pipeline().infer(points).unwrap();
    let right = logits.argmax(1).squeeze_dim::<1>(1).equal(quarters);
    let right: i64 = right.int().sum().into_scalar();
    let percent = 100.0 * right as f64 / 30.0;
    let accuracy = format!("| valid Accuracy {percent:.2} % · Loss ");
    assert!(lines[1].contains(&accuracy), "{text}\n{accuracy}");
}

#[test]
fn a_resumed_training_continues_its_count() {
    let directory = tempfile::tempdir().unwrap();
    let training = |epochs| training(directory.path(), epochs).with_default_checkpointers();
    training(1).launch(learner(pipeline(2)));
    let (training, written) = written(training(2).checkpoint(1));
    training.launch(learner(pipeline(2)));
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
fn bars_show_epochs_and_the_current_split() {
    let directory = tempfile::tempdir().unwrap();
    let terminal = Terminal::default();
    let target = ProgressDrawTarget::term_like(Box::new(terminal.clone()));
    training(directory.path(), 2)
        .renderer(Box::new(Bars::drawn(target)))
        .launch(learner(pipeline(2)));
    let shown = terminal.0.lock().unwrap().clone();
    let in_line = |parts: &[&str], line: &str| parts.iter().all(|part| line.contains(part));
    let has = |parts: &[&str]| shown.lines().any(|line| in_line(parts, line));
    assert!(has(&["epoch ", "0/2", " left"]), "{shown}");
    assert!(has(&["train ", "/50 ", "Accuracy "]), "{shown}");
    let line = ["epoch 1/2: train Accuracy ", "| valid Accuracy "];
    assert!(has(&line), "{shown}");
}
