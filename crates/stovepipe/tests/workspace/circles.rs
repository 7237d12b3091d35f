//! Files of a crate that import one another in a circle. Such files can only be read together.
//!
//! The test follows each `use` at the top of a file through `pub use` to the file that declares the
//! name. A file may import from the files above it (`a/b.rs` from `a.rs`), and test modules from
//! anywhere.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use crate::metadata::{Package, packages};

/// `a::b` as `["a", "b"]`: where a file's module is in its crate, or what a `use` names.
type Names = Vec<String>;

#[test]
fn no_files_of_a_crate_import_one_another_in_a_circle() {
    let mut circles = Vec::new();
    // Those for the model checker have the files of others.
    let has_files = |package: &Package| package.folder().join("src").is_dir();
    for package in packages().into_iter().filter(has_files) {
        let files = Files::read(&package.folder().join("src"));
        let name = &package.name;
        circles.extend(files.circles().map(|circle| format!("{name}: {circle}")));
    }
    assert_eq!(
        circles, [""; 0],
        "files import one another in a circle; move what both need into a file of its own, or from \
         one into the other",
    );
}

#[test]
fn a_circle_is_found() {
    let file = |module: &str, text: &str| (names(module), imports(text));
    let renamed = "use std::fmt; use crate::{\n    F as G, // declared in c::e\n};";
    let tested = "use crate::a::below::Y;\n#[cfg(test)]\nmod tests { use crate::c; }";
    let files = Files(BTreeMap::from([
        file("", "mod a; mod b; mod c; pub use c::{D, e::F};"),
        file("a", "use crate::b::{self, X};"),
        file("a::below", "use super::Above; use crate::b;"),
        file("b", renamed),
        file("c", "use e::F;"),
        file("c::e", tested),
    ]));
    let circles: Vec<String> = files.circles().collect();
    assert_eq!(circles, ["a::below -> b -> c::e -> a::below"]);
}

/// The imports of each file of a crate, by the file's module.
struct Files(BTreeMap<Names, Vec<Import>>);

struct Import {
    is_public: bool,
    path: Names,
    /// What the file calls it.
    name: String,
}

impl Files {
    fn read(src: &Path) -> Self {
        let mut files = BTreeMap::new();
        let mut folders = vec![src.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let text = fs::read_to_string(&path).unwrap();
                    files.insert(module(path.strip_prefix(src).unwrap()), imports(&text));
                }
            }
        }
        Self(files)
    }

    /// One circle for each group of files that lead to one another.
    fn circles(&self) -> impl Iterator<Item = String> {
        let mut seen = BTreeSet::new();
        self.0.keys().filter_map(move |module| {
            let circle = (!seen.contains(module)).then(|| self.way_back(module))??;
            seen.extend(circle.iter().cloned());
            let names: Vec<_> = circle.iter().map(|module| module.join("::")).collect();
            Some(names.join(" -> "))
        })
    }

    /// The shortest way from a module over its imports back to itself.
    fn way_back(&self, module: &Names) -> Option<Vec<Names>> {
        let mut ways = vec![vec![module.clone()]];
        let mut seen = BTreeSet::new();
        let mut next = 0;
        while let Some(way) = ways.get(next).cloned() {
            next += 1;
            for imported in self.imported(&way[way.len() - 1]) {
                let mut way = way.clone();
                way.push(imported.clone());
                if &imported == module {
                    return Some(way);
                }
                if seen.insert(imported) {
                    ways.push(way);
                }
            }
        }
        None
    }

    /// The other modules that declare what a module imports, without those above it.
    fn imported(&self, module: &Names) -> BTreeSet<Names> {
        let imports = self.0[module].iter().filter(|import| !import.is_public);
        let declared = imports.filter_map(|import| self.declared(module, &import.path, 0));
        declared.filter(|from| !module.starts_with(from)).collect()
    }

    /// The module that declares what a path names in a module; `None` for other crates.
    fn declared(&self, module: &[String], path: &[String], depth: usize) -> Option<Names> {
        let base = |up: usize| module.get(..module.len().checked_sub(up)?);
        let (base, path) = match path.first()?.as_str() {
            "crate" => (&module[..usize::from(is_program(module))], &path[1..]),
            "self" => (module, &path[1..]),
            "super" => {
                let up = path.iter().take_while(|name| *name == "super").count();
                (base(up)?, &path[up..])
            }
            first if self.0.contains_key(&[module, &[first.to_owned()]].concat()) => (module, path),
            _ => return None,
        };
        let whole = [base, path].concat();
        let is_file = |length: &usize| self.0.contains_key(&whole[..*length]);
        let length = (base.len()..=whole.len()).rev().find(is_file)?;
        let (file, rest) = whole.split_at(length);
        let passed_on = |import: &&Import| import.is_public && rest.first() == Some(&import.name);
        match self.0[file].iter().find(passed_on) {
            Some(import) if depth < 8 => {
                let path = [&import.path, &rest[1..]].concat();
                self.declared(file, &path, depth + 1)
            }
            _ => Some(file.to_vec()),
        }
    }
}

/// The module of a file below `src`. A program in `src/bin` is a crate of its own, `bin name`.
fn module(file: &Path) -> Names {
    let file = file.with_extension("");
    let names = file.iter().map(|name| name.to_str().unwrap().to_owned());
    let mut names: Names = names.collect();
    if names[0] == "bin" {
        names.remove(0);
        names[0].insert_str(0, "bin ");
    }
    let is_root = |name: &String| ["lib", "main", "mod"].contains(&name.as_str());
    names.pop_if(|name| is_root(name));
    names
}

fn is_program(module: &[String]) -> bool {
    module.first().is_some_and(|name| name.starts_with("bin "))
}

fn names(path: &str) -> Names {
    let names = path.split("::").map(|name| name.trim().to_owned());
    names.filter(|name| !name.is_empty()).collect()
}

/// What the `use` statements of a file name, without those of its tests.
fn imports(text: &str) -> Vec<Import> {
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap();
    let without_comment = |line: &str| line.split("//").next().unwrap().to_owned() + "\n";
    let text: String = text.lines().map(without_comment).collect();
    let mut imports = Vec::new();
    for statement in text.split(';') {
        let statement = statement.trim_start();
        // What stands before it: attributes, or `mod a { … }`.
        let Some(begin) = statement.find("use ").filter(|begin| {
            let before = statement[..*begin].trim_end();
            before.is_empty() || before.ends_with([']', '}', '{', ')']) || before.ends_with("pub")
        }) else {
            continue;
        };
        let is_public = statement[..begin].trim_end().ends_with("pub");
        for path in expanded(&statement[begin + 4..]) {
            let (path, name) = path.split_once(" as ").unwrap_or((&path, ""));
            let mut path = names(path);
            path.pop_if(|last| last == "self" || last == "*");
            let last = path.last().map_or("", String::as_str);
            let name = if name.is_empty() { last } else { name.trim() }.to_owned();
            imports.push(Import {
                is_public,
                path,
                name,
            });
        }
    }
    imports
}

/// `a::{b, c::{d, e}}` as `a::b`, `a::c::d`, `a::c::e`.
fn expanded(tree: &str) -> Vec<String> {
    let Some((before, rest)) = tree.split_once('{') else {
        return vec![tree.trim().to_owned()];
    };
    let (mut depth, mut parts, mut part) = (0, Vec::new(), String::new());
    for letter in rest.chars() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(std::mem::take(&mut part));
                continue;
            }
            _ => {}
        }
        part.push(letter);
    }
    parts.push(part);
    let parts = parts.iter().filter(|part| !part.trim().is_empty());
    let paths = parts.flat_map(|part| expanded(part));
    paths
        .map(|path| format!("{}{path}", before.trim()))
        .collect()
}
