//! A machine may stop at any moment of a save, and a disk may fail at any call.
//!
//! A save is recorded, call by call. Until a file is synced, the disk may have nothing of it, a part, or a part and
//! zeros; until a folder is synced, it may have any of the names that were made, moved or removed there, in any
//! order. States in which that can leave a disk are made, after each call all of them or, if they are many, some at
//! random. Each must hold a checkpoint that is whole: the one before or the new one, and the new one if the save had
//! returned.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use burn::tensor::{Device, Int, Tensor};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use stovepipe_pipeline::{CrossEntropy, Pipeline};

use super::{
    Checkpoints, Contents, Keep, TrainerState,
    disk::{Disk, FileSystem, Files, Write},
    sums,
};
use crate::{
    error::TrainError,
    example::Dense,
    optimizer::{GradientAccumulator, StagedOptimizer},
    settings::TrainSettings,
    task::Totals,
    weights::Base,
};

const RUN: &str = "run";
/// The newest alone.
const KEEP: Keep<'_> = Keep {
    last: 1,
    best: 0,
    by: None,
};

#[derive(Clone, Debug, PartialEq)]
enum Call {
    CreateFolder(PathBuf),
    Write(PathBuf, Vec<u8>),
    Rename(PathBuf, PathBuf),
    RemoveFolder(PathBuf),
    SyncFile(PathBuf),
    SyncFolder(PathBuf),
}

impl Call {
    /// The file that an error is to name.
    fn path(&self) -> &Path {
        match self {
            Self::CreateFolder(path)
            | Self::Write(path, _)
            | Self::Rename(_, path)
            | Self::RemoveFolder(path)
            | Self::SyncFile(path)
            | Self::SyncFolder(path) => path,
        }
    }
}

/// Notes each call, and lets one fail. It does not wait for the disk. Clones share their notes.
#[derive(Clone, Debug, Default)]
struct Trial {
    root: PathBuf,
    calls: Arc<Mutex<Vec<Call>>>,
    fails: Option<(usize, ErrorKind)>,
}

impl Trial {
    fn on(root: &Path) -> Self {
        let root = root.to_owned();
        Self {
            root,
            ..Self::default()
        }
    }

    fn own(&self, path: &Path) -> PathBuf {
        path.strip_prefix(&self.root).unwrap().to_owned()
    }

    fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }

    /// Whether it is to fail, noted before.
    fn note(&self, call: Call) -> io::Result<()> {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.push(call);
        match self.fails {
            Some((index, kind)) if index + 1 == calls.len() => Err(kind.into()),
            _ => Ok(()),
        }
    }
}

impl Disk for Trial {
    fn create_folder(&self, path: &Path) -> io::Result<()> {
        self.note(Call::CreateFolder(self.own(path)))?;
        FileSystem.create_folder(path)
    }

    /// A write that fails leaves half of the file.
    fn write(&self, path: &Path, write: Write<'_>) -> Result<(), TrainError> {
        FileSystem.write(path, write)?;
        let content = fs::read(path).unwrap();
        let half = content[..content.len() / 2].to_vec();
        let noted = self.note(Call::Write(self.own(path), content));
        noted.map_err(|error| {
            fs::write(path, half).unwrap();
            TrainError::file(path)(error)
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.note(Call::Rename(self.own(from), self.own(to)))?;
        FileSystem.rename(from, to)
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        self.note(Call::RemoveFolder(self.own(path)))?;
        FileSystem.remove_folder(path)
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        self.note(Call::SyncFile(self.own(path)))
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        self.note(Call::SyncFolder(self.own(path)))
    }
}

/// A training of two stages.
struct Training {
    pipeline: Pipeline<Dense>,
    optimizer: StagedOptimizer,
    accumulator: GradientAccumulator,
    state: TrainerState,
}

impl Training {
    fn new() -> Self {
        let settings = TrainSettings::default();
        let layers = vec![Dense::new(4, 6), Dense::new(6, 3)];
        let builder = Pipeline::builder(layers).devices(vec![Device::flex(); 2]);
        let optimizer = StagedOptimizer::new(&settings, 2);
        Self {
            pipeline: builder.build().unwrap(),
            accumulator: GradientAccumulator::new(&optimizer),
            optimizer,
            state: TrainerState::begin(&settings, &Totals::zero(&[])),
        }
    }

    fn step(&mut self) {
        let device = Device::flex();
        let batch = (
            Tensor::<2>::ones([2, 4], &device),
            Tensor::<1, Int>::ones([2], &device),
        );
        let step = self
            .pipeline
            .train_step(batch, &CrossEntropy::new())
            .unwrap();
        let (pipeline, gradients) = (&mut self.pipeline, step.gradients);
        let stepped = self
            .optimizer
            .step(0.01, pipeline, gradients, Instant::now());
        stepped.unwrap();
        self.state.batch += 1;
        self.state.steps += 1;
    }

    /// Makes a checkpoint, and removes the one before.
    fn save(&mut self, root: &Path, files: Files) -> Result<(), TrainError> {
        let (state, base) = (self.state.clone(), Base::default());
        checkpoints(root, files).save(&self.contents(&base), &state, KEEP)
    }

    fn contents<'a>(&'a mut self, base: &'a Base) -> Contents<'a, Dense> {
        Contents {
            pipeline: &mut self.pipeline,
            average: None,
            optimizer: &mut self.optimizer,
            accumulator: &mut self.accumulator,
            base,
        }
    }
}

fn with_run() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join(RUN)).unwrap();
    root
}

fn checkpoints(root: &Path, files: Files) -> Checkpoints {
    let mut checkpoints = Checkpoints::of(&root.join(RUN));
    checkpoints.files = files;
    checkpoints
}

/// The checksums of the newest checkpoint that is whole, and how many were damaged.
fn newest(root: &Path) -> Result<(Option<String>, usize), TrainError> {
    let (newest, damaged) = checkpoints(root, Files::default()).newest()?;
    let sums = newest.map(|own| fs::read_to_string(own.path().join(sums::SUMS)).unwrap());
    Ok((sums, damaged.len()))
}

type Node = usize;
/// What a name in a folder stands for from now on.
type Change = (Node, String, Option<Node>);

/// A disk as programs see it, and what is surely on it.
#[derive(Default)]
struct Model {
    names: BTreeMap<(Node, String), Node>,
    /// What is in files, and whether that is synced.
    contents: BTreeMap<Node, (Vec<u8>, bool)>,
    nodes: Node,
    kept: BTreeMap<(Node, String), Node>,
    /// What the disk may have done or not; what belongs together is done at once.
    pending: Vec<Vec<Change>>,
}

/// What is in each file, and `None` for a folder.
type Tree = BTreeMap<PathBuf, Option<Vec<u8>>>;

const ROOT: Node = 0;

fn apply(names: &mut BTreeMap<(Node, String), Node>, changes: &[Change]) {
    for (folder, name, node) in changes {
        let place = (*folder, name.clone());
        match node {
            Some(node) => drop(names.insert(place, *node)),
            None => drop(names.remove(&place)),
        }
    }
}

impl Model {
    /// All of a folder, synced.
    fn of(root: &Path) -> Self {
        fn add(model: &mut Model, root: &Path, folder: &Path) {
            for path in sums::paths(folder).unwrap() {
                let own = path.strip_prefix(root).unwrap().to_owned();
                if path.is_dir() {
                    model.call(&Call::CreateFolder(own.clone()));
                    add(model, root, &path);
                } else {
                    let content = fs::read(&path).unwrap();
                    model.call(&Call::Write(own.clone(), content));
                    model.call(&Call::SyncFile(own));
                }
            }
        }
        let mut model = Self::default();
        add(&mut model, root, root);
        model.pending.clear();
        model.kept = model.names.clone();
        model
    }

    fn node(&self, path: &Path) -> Option<Node> {
        path.iter().try_fold(ROOT, |folder, name| {
            let place = (folder, name.to_str()?.to_owned());
            self.names.get(&place).copied()
        })
    }

    fn place(&self, path: &Path) -> (Node, String) {
        let folder = self.node(path.parent().unwrap()).unwrap();
        (
            folder,
            path.file_name().unwrap().to_str().unwrap().to_owned(),
        )
    }

    fn change(&mut self, changes: Vec<Change>) {
        apply(&mut self.names, &changes);
        self.pending.push(changes);
    }

    fn create(&mut self, path: &Path) -> Node {
        self.nodes += 1;
        let (node, (folder, name)) = (self.nodes, self.place(path));
        self.change(vec![(folder, name, Some(node))]);
        node
    }

    fn remove(&mut self, path: &Path) {
        let (folder, name) = self.place(path);
        self.change(vec![(folder, name, None)]);
    }

    fn call(&mut self, call: &Call) {
        match call {
            Call::CreateFolder(path) => {
                if self.node(path).is_none() {
                    self.create(path);
                }
            }
            // As the library for tensors does it, a file is a new one.
            Call::Write(path, content) => {
                let node = self.create(path);
                self.contents.insert(node, (content.clone(), false));
            }
            Call::Rename(from, to) => {
                let (node, from, to) = (self.node(from), self.place(from), self.place(to));
                self.change(vec![(from.0, from.1, None), (to.0, to.1, node)]);
            }
            Call::RemoveFolder(path) => {
                let Some(folder) = self.node(path) else {
                    return;
                };
                let names = self.names.keys().filter(|place| place.0 == folder);
                let paths: Vec<_> = names.map(|(_, name)| path.join(name)).collect();
                for file in paths.iter().chain([path]) {
                    self.remove(file);
                }
            }
            Call::SyncFile(path) => {
                let node = self.node(path).unwrap();
                self.contents.get_mut(&node).unwrap().1 = true;
            }
            Call::SyncFolder(path) => {
                let folder = self.node(path).unwrap();
                let is_of = |changes: &Vec<Change>| changes.iter().any(|change| change.0 == folder);
                let (done, pending): (Vec<_>, Vec<_>) = std::mem::take(&mut self.pending)
                    .into_iter()
                    .partition(is_of);
                self.pending = pending;
                for changes in done {
                    apply(&mut self.kept, &changes);
                }
            }
        }
    }

    /// What the disk may hold if the machine stops now: all there is, or so many at random.
    fn states(&self, most: u32, rng: &mut ChaCha8Rng) -> BTreeSet<Tree> {
        let dirty = self.contents.iter().filter(|(_, own)| !own.1);
        let dirty: Vec<_> = dirty.map(|(node, _)| *node).collect();
        let bits = self.pending.len() + 2 * dirty.len();
        let all = 1_u32.checked_shl(bits as u32).filter(|&all| all <= most);
        let one = |choice: &mut dyn FnMut(usize) -> u32| {
            let mut names = self.kept.clone();
            for changes in &self.pending {
                if choice(1) == 1 {
                    apply(&mut names, changes);
                }
            }
            let mut contents: BTreeMap<_, _> = self.contents.clone();
            for node in &dirty {
                let content = &mut contents.get_mut(node).unwrap().0;
                let half = content.len() / 2;
                match choice(2) {
                    0 => content.clear(),
                    1 => content.truncate(half),
                    2 => content[half..].fill(0),
                    _ => {}
                }
            }
            tree(&names, &contents)
        };
        match all {
            Some(all) => (0..all)
                .map(|mut number| {
                    one(&mut |bits| {
                        let own = number & ((1 << bits) - 1);
                        number >>= bits;
                        own
                    })
                })
                .collect(),
            None => (0..most)
                .map(|_| one(&mut |bits| rng.random_range(0..1 << bits)))
                .collect(),
        }
    }
}

fn tree(
    names: &BTreeMap<(Node, String), Node>,
    contents: &BTreeMap<Node, (Vec<u8>, bool)>,
) -> Tree {
    let mut found = Tree::new();
    let mut folders = vec![(ROOT, PathBuf::new())];
    while let Some((folder, path)) = folders.pop() {
        for ((_, name), node) in names.range((folder, String::new())..(folder + 1, String::new())) {
            let path = path.join(name);
            match contents.get(node) {
                Some((content, _)) => drop(found.insert(path, Some(content.clone()))),
                None => {
                    found.insert(path.clone(), None);
                    folders.push((*node, path));
                }
            }
        }
    }
    found
}

fn made(tree: &Tree) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, content) in tree {
        let path = root.path().join(path);
        match content {
            None => fs::create_dir_all(path).unwrap(),
            Some(content) => fs::write(path, content).unwrap(),
        }
    }
    root
}

/// A save after a save, or the first one.
struct Save<'a> {
    is_first: bool,
    /// The call that finds the disk full: room is made, and the save made again.
    full: Option<usize>,
    /// Which calls the disk gets.
    is_kept: &'a dyn Fn(&Call) -> bool,
    /// States at a moment.
    most: u32,
}

impl Default for Save<'_> {
    fn default() -> Self {
        Self {
            is_first: false,
            full: None,
            is_kept: &|_| true,
            most: 400,
        }
    }
}

/// What was found in the states in which a save may leave a disk.
struct Found {
    lost: Vec<String>,
    states: usize,
    calls: usize,
}

impl Save<'_> {
    fn tried(&self) -> Found {
        let (root, mut rng) = (with_run(), ChaCha8Rng::seed_from_u64(7));
        let (root, mut training) = (root.path(), Training::new());
        training.step();
        if !self.is_first {
            training.save(root, Files::on(Trial::on(root))).unwrap();
            training.step();
        }
        let before = newest(root).unwrap().0;
        let mut model = Model::of(root);
        let mut trial = Trial::on(root);
        trial.fails = self.full.map(|call| (call, ErrorKind::StorageFull));
        let files = Files::on(trial.clone());
        if training.save(root, files.clone()).is_err() {
            checkpoints(root, files.clone())
                .remove_oldest(KEEP)
                .unwrap();
            training.save(root, files).unwrap();
        }
        let after = newest(root).unwrap().0;
        assert!(after.is_some() && after != before);

        let (mut lost, mut seen) = (Vec::new(), BTreeSet::new());
        let mut calls = trial.calls();
        let all = calls.len();
        if let Some(failed) = self.full.filter(|&failed| failed < all) {
            match &mut calls[failed] {
                Call::Write(_, content) => content.truncate(content.len() / 2),
                _ => drop(calls.remove(failed)),
            }
        }
        calls.retain(self.is_kept);
        for number in 0..=calls.len() {
            if let Some(call) = number.checked_sub(1) {
                model.call(&calls[call]);
            }
            let is_over = number == calls.len();
            for tree in model.states(self.most, &mut rng) {
                if !seen.insert((is_over, tree.clone())) {
                    continue;
                }
                let disk = made(&tree);
                let found = newest(disk.path());
                let is_whole =
                    |found: &Option<String>| *found == after || (!is_over && *found == before);
                if !matches!(&found, Ok((found, 0)) if is_whole(found)) {
                    lost.push(format!(
                        "after {number} of {} calls: {found:?}",
                        calls.len()
                    ));
                    continue;
                }
                // The next save goes on from there, and leaves nothing else.
                if seen.len() % 16 == 0 {
                    let files = Files::on(Trial::on(disk.path()));
                    training.save(disk.path(), files).unwrap();
                    assert_eq!(newest(disk.path()).unwrap(), (after.clone(), 0));
                    let folder = disk.path().join(RUN).join("checkpoints");
                    assert_eq!(sums::paths(&folder).unwrap().len(), 1);
                }
            }
        }
        Found {
            lost,
            states: seen.len(),
            calls: all,
        }
    }
}

/// Also when training has gone on meanwhile. So what is found below for contents holds for their copies.
#[test]
fn a_copy_is_written_by_the_same_calls() {
    let [root, of_copy] = [with_run(), with_run()];
    let [root, of_copy] = [root.path(), of_copy.path()];
    let (mut training, base) = (Training::new(), Base::default());
    training.step();
    let trials = [Trial::on(root), Trial::on(of_copy)];
    for _ in 0..2 {
        let copied = training
            .contents(&base)
            .copy(root, |_| true)
            .unwrap()
            .unwrap();
        let state = training.state.clone();
        training.save(root, Files::on(trials[0].clone())).unwrap();
        training.step();
        let checkpoints = checkpoints(of_copy, Files::on(trials[1].clone()));
        checkpoints.save_copy(&copied, &state, KEEP).unwrap();
    }
    assert_eq!(trials[0].calls(), trials[1].calls());
    assert_eq!(newest(root).unwrap(), newest(of_copy).unwrap());
}

/// It is asked with each file, until one has no room.
#[test]
fn there_is_no_copy_without_room() {
    let (mut training, base) = (Training::new(), Base::default());
    let asked: RefCell<Vec<usize>> = RefCell::default();
    training.step();
    let has_room = |most: usize| {
        let asked = &asked;
        move |bytes| {
            asked.borrow_mut().push(bytes);
            asked.borrow().len() <= most
        }
    };
    let contents = training.contents(&base);
    assert!(contents.copy(Path::new(""), has_room(1)).unwrap().is_none());
    // Two layers; then the first one's moments and count.
    let (first, both) = (4 * (4 * 6 + 6), 4 * (4 * 6 + 6 + 6 * 3 + 3));
    assert_eq!(asked.take()[0], both);
    assert!(contents.copy(Path::new(""), has_room(3)).unwrap().is_some());
    let asked = asked.take();
    assert_eq!(asked.len(), 3);
    assert!(asked[1] - asked[0] >= 2 * first, "{asked:?}");
}

#[test]
fn a_machine_may_stop_at_any_moment() {
    for is_first in [false, true] {
        let save = Save {
            is_first,
            ..Save::default()
        };
        let found = save.tried();
        assert_eq!(found.lost, [""; 0]);
        assert!(found.states > 200, "{}", found.states);
    }
}

#[test]
fn a_machine_may_stop_while_room_is_made() {
    for call in 0.. {
        let save = Save {
            full: Some(call),
            most: 12,
            ..Save::default()
        };
        let found = save.tried();
        assert_eq!(found.lost, [""; 0], "call {call}");
        if found.calls <= call {
            assert!(call > 15, "{call}");
            break;
        }
    }
}

/// Without them, the states above have some where a checkpoint is lost.
#[test]
fn every_kind_of_sync_is_needed() {
    let kinds: [&dyn Fn(&Call) -> bool; 2] =
        [&|call| !matches!(call, Call::SyncFile(_)), &|call| {
            !matches!(call, Call::SyncFolder(_))
        }];
    for is_kept in kinds {
        let save = Save {
            is_kept,
            most: 50,
            ..Save::default()
        };
        assert!(!save.tried().lost.is_empty());
    }
}

/// The error names the file and the reason, no checkpoint is lost, and the next save works.
#[test]
fn a_disk_may_fail_at_any_call() {
    let kinds = [
        ErrorKind::StorageFull,
        ErrorKind::PermissionDenied,
        ErrorKind::NotFound,
        ErrorKind::AlreadyExists,
    ];
    let root = with_run();
    let (root, mut training) = (root.path(), Training::new());
    training.step();
    training.save(root, Files::on(Trial::on(root))).unwrap();
    let (mut fails, mut before) = (0, newest(root).unwrap().0);
    for kind in kinds {
        for call in 0.. {
            training.step();
            let mut trial = Trial::on(root);
            trial.fails = Some((call, kind));
            let saved = training.save(root, Files::on(trial.clone()));
            let calls = trial.calls();
            let Some(failed) = calls.get(call) else {
                saved.unwrap();
                assert!(call > 15, "{call}");
                before = newest(root).unwrap().0;
                break;
            };
            let now = newest(root).unwrap();
            match (&saved, failed, kind) {
                (Ok(()), Call::RemoveFolder(_), ErrorKind::NotFound)
                | (Ok(()), Call::CreateFolder(_), ErrorKind::AlreadyExists) => {}
                (Err(error), ..) => {
                    fails += 1;
                    let error = error.to_string();
                    let path: PathBuf = root.join(failed.path()).components().collect();
                    for part in [path.display().to_string(), kind.to_string()] {
                        assert!(error.contains(&part), "{error}: {failed:?}");
                    }
                }
                _ => panic!("{failed:?}: {kind}"),
            }
            assert!(now.0.is_some() && now.1 == 0, "{failed:?}");
            training.save(root, Files::on(Trial::on(root))).unwrap();
            let after = newest(root).unwrap().0;
            assert!(
                after != before && [&before, &after].contains(&&now.0),
                "{failed:?}"
            );
            before = after;
        }
    }
    assert!(fails > 60, "{fails}");
}

#[test]
fn a_call_that_a_signal_interrupts_is_made_again() {
    let root = with_run();
    let (root, mut training) = (root.path(), Training::new());
    for call in 0.. {
        training.step();
        let mut trial = Trial::on(root);
        trial.fails = Some((call, ErrorKind::Interrupted));
        let saved = training.save(root, Files::on(trial.clone()));
        let calls = trial.calls();
        match calls.get(call) {
            // The system's own calls to write are made again by the libraries.
            Some(Call::Write(..)) => continue,
            Some(_) => saved.unwrap(),
            None => {
                saved.unwrap();
                break;
            }
        }
        assert_eq!(calls[call], calls[call + 1]);
    }
}
