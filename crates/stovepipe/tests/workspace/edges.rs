use crate::metadata::{Package, packages};

/// The crates of the workspace that a crate may depend on, without `stovepipe-`; `models/` is any crate
/// of that folder. Dependencies point one way: from programs to the facade, its parts, the engine, and
/// the crates below it. Tests may use any crate.
const ALLOWED: [(&str, &str); 26] = [
    ("autodiff", ""),
    ("collective", "comm"),
    ("comm", ""),
    ("comm-mpi", "comm"),
    ("comm-shuttle", ""),
    ("derive", ""),
    ("runtime", ""),
    ("runtime-shuttle", ""),
    ("schedule", ""),
    ("plan", "schedule"),
    ("report", "schedule"),
    ("kernels", "autodiff"),
    (
        "pipeline",
        "autodiff collective comm derive kernels plan runtime schedule",
    ),
    ("train", "comm kernels pipeline plan schedule"),
    ("verify", "comm pipeline schedule"),
    ("learner", "pipeline train"),
    (
        "stovepipe",
        "derive learner pipeline plan schedule train verify",
    ),
    ("workspace-hack", ""),
    ("models/", "kernels pipeline"),
    ("upstream/", ""),
    ("datasets/", ""),
    (
        "cli",
        "comm-mpi datasets/ models/ report stovepipe workspace-hack",
    ),
    (
        "examples/",
        "comm comm-mpi datasets/ models/ report stovepipe workspace-hack",
    ),
    ("agreeing", "comm comm-mpi"),
    ("allreduce", "collective comm comm-mpi"),
    (
        "benches",
        "comm comm-mpi datasets/ models/ plan stovepipe workspace-hack",
    ),
];

impl Package {
    /// Whether an entry of the table is about this crate.
    fn is(&self, entry: &str) -> bool {
        let group = self.group();
        if ["datasets", "examples", "models", "upstream"].contains(&group.as_str()) {
            return entry.strip_suffix('/') == Some(&group);
        }
        self.name.strip_prefix("stovepipe-").unwrap_or(&self.name) == entry
    }
}

#[test]
fn dependencies_between_crates_are_allowed_ones() {
    let all = packages();
    for package in &all {
        let name = &package.name;
        let row = ALLOWED.iter().find(|(entry, _)| package.is(entry));
        let (_, allowed) =
            row.unwrap_or_else(|| panic!("`{name}` is new: add to ALLOWED what it may depend on"));
        let of_workspace = |name: &str| all.iter().find(|package| package.name == name);
        for dependency in package.dependencies().filter_map(of_workspace) {
            assert!(
                allowed.split(' ').any(|entry| dependency.is(entry)),
                "`{name}` depends on `{}`, which ALLOWED does not list. Move the code into a crate \
                 that both may use. If the dependency is intended, add it to ALLOWED, and its reason \
                 to ARCHITECTURE.md.",
                dependency.name,
            );
        }
    }
}

/// Without it, `cargo test -p` of the crate builds Burn again, with other features.
#[test]
fn crates_that_build_burn_have_the_features_of_the_workspace() {
    let all = packages();
    let builds_burn = |package: &Package| needs(&all, package, "burn");
    for package in all.iter().filter(|package| builds_burn(package)) {
        let mut dependencies = package.dependencies().chain(package.dev_dependencies());
        assert!(
            dependencies.any(|name| name == "workspace-hack"),
            "`{}` builds Burn: add `workspace-hack.workspace = true` to its dev-dependencies",
            package.name,
        );
    }
}

/// Whether a crate depends on another, directly or through crates of the workspace.
fn needs(all: &[Package], package: &Package, dependency: &str) -> bool {
    let in_workspace = |name: &str| all.iter().find(|package| package.name == name);
    package.dependencies().any(|name| {
        name == dependency
            || in_workspace(name).is_some_and(|package| needs(all, package, dependency))
    })
}
