//! A disk that fails, and one whose machine stops.
//!
//! What is done on a [`Trial`] is recorded, call by call. Until a file is synced, the disk may have nothing of what was
//! written since, a part, or a part and zeros; until a folder is synced, it may have any of the names that were made,
//! moved or removed there, in any order. A [`Model`] follows the calls and makes those states.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Disk, FileSystem, Write, paths};
use crate::error::TrainError;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Call {
    CreateFolder(PathBuf),
    Write(PathBuf, Vec<u8>),
    Append(PathBuf, Vec<u8>),
    Link(PathBuf, PathBuf),
    Rename(PathBuf, PathBuf),
    RemoveFile(PathBuf),
    RemoveFolder(PathBuf),
    SyncFile(PathBuf),
    SyncFolder(PathBuf),
}

impl Call {
    /// The file that an error is to name.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::CreateFolder(path)
            | Self::Write(path, _)
            | Self::Append(path, _)
            | Self::Link(_, path)
            | Self::Rename(_, path)
            | Self::RemoveFile(path)
            | Self::RemoveFolder(path)
            | Self::SyncFile(path)
            | Self::SyncFolder(path) => path,
        }
    }
}

/// Notes each call, and lets one fail. It does not wait for the disk. Clones share their notes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trial {
    root: PathBuf,
    calls: Arc<Mutex<Vec<Call>>>,
    pub(crate) fails: Option<(usize, ErrorKind)>,
    pub(crate) has_no_links: bool,
}

impl Trial {
    pub(crate) fn on(root: &Path) -> Self {
        let root = root.to_owned();
        Self {
            root,
            ..Self::default()
        }
    }

    fn own(&self, path: &Path) -> PathBuf {
        path.strip_prefix(&self.root).unwrap().to_owned()
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
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

    fn append(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        self.note(Call::Append(self.own(path), content.to_vec()))?;
        FileSystem.append(path, content)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        if self.has_no_links {
            return Err(ErrorKind::Unsupported.into());
        }
        self.note(Call::Link(self.own(from), self.own(to)))?;
        FileSystem.link(from, to)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.note(Call::Rename(self.own(from), self.own(to)))?;
        FileSystem.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.note(Call::RemoveFile(self.own(path)))?;
        FileSystem.remove_file(path)
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

type Node = usize;
/// What a name in a folder stands for from now on.
type Change = (Node, String, Option<Node>);

/// A disk as programs see it, and what is surely on it.
#[derive(Default)]
pub(crate) struct Model {
    names: BTreeMap<(Node, String), Node>,
    contents: BTreeMap<Node, Content>,
    nodes: Node,
    kept: BTreeMap<(Node, String), Node>,
    /// What the disk may have done or not; what belongs together is done at once.
    pending: Vec<Vec<Change>>,
}

/// What is in a file.
#[derive(Clone, Default)]
struct Content {
    now: Vec<u8>,
    /// When it was synced.
    kept: Vec<u8>,
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
    pub(crate) fn of(root: &Path) -> Self {
        fn add(model: &mut Model, root: &Path, folder: &Path) {
            for path in paths(folder).unwrap() {
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

    /// With all that is in it, one after the other.
    fn remove_all(&mut self, path: &Path) {
        let Some(node) = self.node(path) else {
            return;
        };
        let names = self.names.keys().filter(|place| place.0 == node);
        let paths: Vec<_> = names.map(|(_, name)| path.join(name)).collect();
        for own in &paths {
            self.remove_all(own);
        }
        self.remove(path);
    }

    /// Makes the states in which the disk may be before these calls and after each of them, up to `most` each time.
    /// `look` gets how many calls there were and the folder. Returns how many states there were.
    pub(crate) fn each_state(
        mut self,
        calls: &[Call],
        most: u32,
        mut look: impl FnMut(usize, &Path),
    ) -> usize {
        let (mut rng, mut seen) = (ChaCha8Rng::seed_from_u64(7), BTreeSet::new());
        for number in 0..=calls.len() {
            if let Some(call) = number.checked_sub(1) {
                self.call(&calls[call]);
            }
            // What is lost after the last call is lost for good.
            let is_over = number == calls.len();
            for tree in self.states(most, &mut rng) {
                if seen.insert((is_over, tree.clone())) {
                    look(number, made(&tree).path());
                }
            }
        }
        seen.len()
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
                let (node, now) = (self.create(path), content.clone());
                let kept = Vec::new();
                self.contents.insert(node, Content { now, kept });
            }
            Call::Append(path, content) => {
                let node = self.node(path).unwrap_or_else(|| self.create(path));
                let file = self.contents.entry(node).or_default();
                file.now.extend_from_slice(content);
            }
            Call::Link(from, to) => {
                let (node, to) = (self.node(from), self.place(to));
                self.change(vec![(to.0, to.1, node)]);
            }
            Call::Rename(from, to) => {
                let (node, from, to) = (self.node(from), self.place(from), self.place(to));
                self.change(vec![(from.0, from.1, None), (to.0, to.1, node)]);
            }
            Call::RemoveFile(path) | Call::RemoveFolder(path) => self.remove_all(path),
            Call::SyncFile(path) => {
                // Not a lock, which is made otherwise.
                let node = self.node(path);
                if let Some(file) = node.and_then(|node| self.contents.get_mut(&node)) {
                    file.kept.clone_from(&file.now);
                }
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

    /// What the disk may hold if the machine stops now: all there is; or so many, which are names without contents,
    /// contents without names, and others at random.
    fn states(&self, most: u32, rng: &mut ChaCha8Rng) -> BTreeSet<Tree> {
        let pending = self.pending.iter().flatten();
        let mut named: BTreeSet<_> = pending.filter_map(|change| change.2).collect();
        named.extend(self.kept.values());
        let is_dirty =
            |(node, own): &(&Node, &Content)| own.now != own.kept && named.contains(node);
        let dirty = self.contents.iter().filter(is_dirty);
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
                let Content { now, kept } = contents.get_mut(node).unwrap();
                let half = usize::midpoint(kept.len(), now.len());
                match choice(2) {
                    0 => now.truncate(kept.len()),
                    1 => now.truncate(half),
                    2 => now[half..].fill(0),
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
            None => {
                let ends = [
                    one(&mut |bits| u32::from(bits == 1)),
                    one(&mut |bits| 3 * u32::from(bits == 2)),
                ];
                let at_random = (ends.len() as u32..most)
                    .map(|_| one(&mut |bits| rng.random_range(0..1 << bits)));
                ends.into_iter().chain(at_random).collect()
            }
        }
    }
}

fn tree(names: &BTreeMap<(Node, String), Node>, contents: &BTreeMap<Node, Content>) -> Tree {
    let mut found = Tree::new();
    let mut folders = vec![(ROOT, PathBuf::new())];
    while let Some((folder, path)) = folders.pop() {
        for ((_, name), node) in names.range((folder, String::new())..(folder + 1, String::new())) {
            let path = path.join(name);
            match contents.get(node) {
                Some(file) => drop(found.insert(path, Some(file.now.clone()))),
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
