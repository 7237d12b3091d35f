//! Several runs, side by side.

use std::{collections::BTreeSet, path::Path};

use crate::{
    error::ReportError,
    lines::first_other,
    read::Report,
    run::{RunSummary, Step},
};

/// More curves in one chart could not be told apart.
const MOST_RUNS: usize = 12;

/// Several runs, for a page that compares them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// The runs.
    pub runs: Vec<Report>,
}

/// A setting in which runs differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherSetting {
    /// Its table and its name, such as `training.lr`.
    pub name: String,
    /// Its value in each run, if it is there.
    pub values: Vec<Option<String>>,
}

impl Comparison {
    /// Reads the folders of runs. Runs of one name get the names of the folders that they are in besides.
    ///
    /// ```
    /// # let parent = tempfile::tempdir().unwrap();
    /// use std::fs;
    /// use stovepipe_report::Comparison;
    ///
    /// let folders = [("a", "1e-3"), ("b", "2e-3")].map(|(name, rate)| {
    ///     let folder = parent.path().join(name);
    ///     let _ = fs::create_dir(&folder);
    ///     let _ = fs::write(folder.join("config.toml"), format!("[training]\nlr = {rate}\nepochs = 8"));
    ///     folder
    /// });
    /// let comparison = Comparison::read(&folders)?;
    /// let other = &comparison.other_settings()[0];
    /// assert_eq!(other.name, "training.lr");
    /// assert_eq!(other.values, [Some("1e-3".to_owned()), Some("2e-3".to_owned())]);
    /// fs::write(parent.path().join("comparison.html"), comparison.to_html())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`Report::read`], or if there are more than twelve runs.
    pub fn read(folders: &[impl AsRef<Path>]) -> Result<Self, ReportError> {
        if folders.len() > MOST_RUNS {
            let (runs, most) = (folders.len(), MOST_RUNS);
            return Err(ReportError::TooManyRuns { runs, most });
        }
        let read = |folder: &_| Report::read(AsRef::<Path>::as_ref(folder));
        let mut runs = folders.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let titles: Vec<_> = runs.iter().map(|run| run.title.clone()).collect();
        for (index, run) in runs.iter_mut().enumerate() {
            if titles.iter().filter(|title| **title == run.title).count() > 1 {
                run.title = format!("{} ({})", run.title, folders[index].as_ref().display());
            }
        }
        Ok(Self { runs })
    }

    /// The settings in which runs differ, in the order of the files.
    #[must_use]
    pub fn other_settings(&self) -> Vec<OtherSetting> {
        let mut seen = BTreeSet::new();
        let tables = self.runs.iter().flat_map(|run| &run.settings.tables);
        let names = tables.flat_map(|table| {
            let name = |(key, _): &(String, String)| (table.name.clone(), key.clone());
            table.entries.iter().map(name)
        });
        let names = names.filter(|name| seen.insert(name.clone()));
        let setting = |(table, key): (String, String)| {
            let of = |run: &Report| run.settings.get(&table, &key).map(str::to_owned);
            let values: Vec<_> = self.runs.iter().map(of).collect();
            let differ = values.windows(2).any(|pair| pair[0] != pair[1]);
            let name = match table.as_str() {
                "" => key,
                _ => format!("{table}.{key}"),
            };
            differ.then_some(OtherSetting { name, values })
        };
        names.filter_map(setting).collect()
    }
}

impl RunSummary {
    /// The hours that the run took, times its workers, each of which has a device of its own or a share of one.
    ///
    /// ```
    /// use stovepipe_report::{RunSummary, StageSummary};
    ///
    /// let stage = |worker| StageSummary { worker, ..StageSummary::default() };
    /// let stages = [0, 1, 1, 0].map(stage).to_vec();
    /// let summary = RunSummary { stages, seconds: 1800.0, ..RunSummary::default() };
    /// assert_eq!(summary.device_hours(), 1.0);
    /// ```
    #[must_use]
    pub fn device_hours(&self) -> f64 {
        let workers: BTreeSet<_> = self.stages.iter().map(|stage| stage.worker).collect();
        self.seconds / 3600.0 * workers.len() as f64
    }
}

/// The steps of two runs next to each other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ComparedSteps {
    /// How many steps are the same, before one differs.
    pub same: usize,
    /// The first step that differs, in both runs.
    pub other: Option<[Step; 2]>,
}

/// The first step in which two runs differ: in the loss, the learning rate, or the norm of the gradients. Steps that one
/// run does not have do not count.
///
/// ```
/// # let parent = tempfile::tempdir().unwrap();
/// use std::fs;
/// use stovepipe_report::first_other_step;
///
/// let folders = ["a", "b"].map(|name| parent.path().join(name));
/// for (folder, losses) in folders.iter().zip([[2.5, 2.25, 2.0], [2.5, 2.25, 1.75]]) {
///     fs::create_dir(folder)?;
///     let steps = losses.iter().zip(1..).map(|(loss, step)| format!(
///         "{{\"step\":{step},\"epoch\":1,\"loss\":{loss},\"learning_rate\":0.1,\
///          \"samples_per_second\":9,\"bubble\":0.2}}\n"
///     ));
///     fs::write(folder.join("steps.jsonl"), steps.collect::<String>())?;
/// }
/// let compared = first_other_step(&folders[0], &folders[1])?;
/// let [first, second] = compared.other.ok_or("none")?;
/// assert_eq!((compared.same, first.step, first.loss, second.loss), (2, 3, 2.0, 1.75));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// If a `steps.jsonl` cannot be read.
pub fn first_other_step(first: &Path, second: &Path) -> Result<ComparedSteps, ReportError> {
    let are_same = |one: &Step, other: &Step| computed(one) == computed(other);
    let (same, other) = first_other([first, second], are_same)?;
    Ok(ComparedSteps { same, other })
}

/// What a step computes, as bits: NaN is like NaN.
fn computed(step: &Step) -> [Option<u64>; 3] {
    let numbers = [
        Some(step.loss),
        Some(step.learning_rate),
        step.gradient_norm,
    ];
    numbers.map(|number| number.map(f64::to_bits))
}
