//! Shared by several tests: folders of sample runs, and a parser for pages.

pub mod chromium;
pub mod dom;
pub mod folder;
