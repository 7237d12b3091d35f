//! The workspace's crates as `cargo metadata` lists them.

use std::{collections::BTreeMap, path::PathBuf};

use serde::Deserialize;

use crate::cargo;

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
pub struct Package {
    pub name: String,
    pub features: BTreeMap<String, Vec<String>>,
    pub description: Option<String>,
    pub license: Option<String>,
    pub documentation: Option<String>,
    pub keywords: Vec<String>,
    pub categories: Vec<String>,
    publish: Option<Vec<String>>,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
pub struct Dependency {
    pub name: String,
    #[serde(rename = "req")]
    pub requirement: String,
    kind: Option<String>,
}

pub fn packages() -> Vec<Package> {
    let text = cargo(&["metadata", "--no-deps", "--format-version", "1"]);
    serde_json::from_str::<Metadata>(&text).unwrap().packages
}

impl Package {
    pub fn folder(&self) -> PathBuf {
        self.manifest_path.parent().unwrap().to_owned()
    }

    /// The name of the folder that holds the crate's folder: `crates`, `models`, …
    pub fn group(&self) -> String {
        let folder = self.folder();
        let group = folder.parent().unwrap().file_name().unwrap();
        group.to_str().unwrap().to_owned()
    }

    pub fn is_published(&self) -> bool {
        self.publish.is_none()
    }

    /// What those who use the crate have to have.
    pub fn needed(&self) -> impl Iterator<Item = &Dependency> {
        let all = self.dependencies.iter();
        all.filter(|dependency| dependency.kind.as_deref() != Some("dev"))
    }

    /// What the crate is built with.
    pub fn dependencies(&self) -> impl Iterator<Item = &str> {
        self.of_kind(false)
    }

    /// What only its tests are built with.
    pub fn dev_dependencies(&self) -> impl Iterator<Item = &str> {
        self.of_kind(true)
    }

    fn of_kind(&self, dev: bool) -> impl Iterator<Item = &str> {
        let is_dev = |dependency: &&Dependency| dependency.kind.as_deref() == Some("dev");
        let all = self.dependencies.iter();
        all.filter(move |dependency| is_dev(dependency) == dev)
            .map(|dependency| dependency.name.as_str())
    }
}
