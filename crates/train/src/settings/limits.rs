//! What the system lets this process use: of memory, what is free and what its control groups leave;
//! of cores, what its affinity and its control groups leave.

use std::{
    fs,
    num::NonZero,
    path::{Path, PathBuf},
    thread,
};

use sysinfo::{MemoryRefreshKind, RefreshKind, System};

/// The bytes of main memory that this process can still use, if the system reports it: what is free,
/// or what a container or job leaves (Linux control groups, version 1 and 2).
///
/// ```
/// assert!(stovepipe_train::settings::free_memory().is_none_or(|bytes| bytes > 0));
/// ```
#[must_use]
pub fn free_memory() -> Option<u64> {
    let memory = RefreshKind::nothing().with_memory(MemoryRefreshKind::everything());
    let free = System::new_with_specifics(memory).available_memory();
    let free = Some(free).filter(|&bytes| bytes > 0);
    // A group that has used up its memory has still none that is unknown.
    let of_groups = left_by_groups(Path::new("/")).map(|bytes| bytes.max(1));
    free.into_iter().chain(of_groups).min()
}

/// The number of cores that this process can use, at least one: those of its affinity, or what a
/// container or job leaves (Linux control groups, version 1 and 2).
///
/// ```
/// assert!(stovepipe_train::settings::cores() > 0);
/// ```
#[must_use]
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// A version of control groups: the names of its files, and of what the kernel takes back from a group
/// before it has too little.
struct Version {
    file_system: &'static str,
    limits: &'static [&'static str],
    used: &'static str,
    cached: [&'static str; 2],
}

const VERSIONS: [Version; 2] = [
    Version {
        file_system: "cgroup2",
        limits: &["memory.max", "memory.high"],
        used: "memory.current",
        cached: ["active_file", "inactive_file"],
    },
    Version {
        file_system: "cgroup",
        limits: &["memory.limit_in_bytes"],
        used: "memory.usage_in_bytes",
        cached: ["total_active_file", "total_inactive_file"],
    },
];

/// The bytes that the control groups of this process leave, if one of them has a limit. `root` is the
/// root of the file system.
fn left_by_groups(root: &Path) -> Option<u64> {
    let read = |path| fs::read_to_string(root.join(path)).unwrap_or_default();
    let (groups, mounts) = (read("proc/self/cgroup"), read("proc/self/mountinfo"));
    let of_mount = |mount| {
        let (version, top, group) = group(mount, &groups)?;
        // A limit of a group holds for all groups below it.
        let (top, relative) = (in_root(root, top), PathBuf::from(group));
        let all = relative.ancestors().map(|group| top.join(group));
        all.filter_map(|group| version.left(&group)).min()
    };
    mounts.lines().filter_map(of_mount).min()
}

/// A path of the mounted system, where `root` is its root.
fn in_root(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// For a line of `/proc/self/mountinfo` that mounts the control groups of memory, where they are and the
/// path of this process's group there. See `man 5 proc` and `man 7 cgroups`.
fn group<'a>(mount: &'a str, groups: &'a str) -> Option<(&'static Version, &'a str, &'a str)> {
    let (mount, file_system) = mount.split_once(" - ")?;
    let mut words = file_system.split(' ');
    let (name, options) = (words.next()?, words.nth(1)?);
    let version = VERSIONS.iter().find(|known| known.file_system == name)?;
    let is_memory = |list: &str| list.split(',').any(|word| word == "memory");
    let is_second = version.file_system == "cgroup2";
    if !is_second && !is_memory(options) {
        return None;
    }
    let own = groups.lines().find_map(|line| {
        let (hierarchy, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let is_own = if is_second {
            hierarchy == "0" && controllers.is_empty()
        } else {
            is_memory(controllers)
        };
        is_own.then_some(path)
    })?;
    let mut fields = mount.split(' ').skip(3);
    let (mounted, top) = (fields.next()?, fields.next()?);
    // A container may see its own group alone, under the path that it has outside, or none of its own.
    let below = Path::new(own).strip_prefix(mounted).ok();
    let below = below
        .and_then(Path::to_str)
        .filter(|path| !path.contains(".."));
    Some((version, top, below.unwrap_or_default()))
}

impl Version {
    /// The bytes that a group leaves, if it has a limit.
    fn left(&self, group: &Path) -> Option<u64> {
        let read = |file: &str| fs::read_to_string(group.join(file)).ok();
        let number = |file: &str| read(file)?.trim().parse::<u64>().ok();
        // The word `max` is no limit.
        let limit = self.limits.iter().filter_map(|file| number(file)).min()?;
        let statistics = read("memory.stat").unwrap_or_default();
        let cached = statistics.lines().filter_map(|line| {
            let (name, bytes) = line.split_once(' ')?;
            let is_cached = self.cached.contains(&name);
            is_cached
                .then(|| bytes.trim().parse::<u64>().ok())
                .flatten()
        });
        let used = number(self.used)?.saturating_sub(cached.sum());
        Some(limit.saturating_sub(used))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const V1: &str = "30 25 0:26 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory\n\
                      31 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n";
    const V2: &str = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";

    /// Of a container: it sees its own group alone, under the path that it has outside.
    const V1_INSIDE: &str =
        "30 25 0:26 /docker/1a /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";

    /// The bytes that are left in a system with these mounts, groups of this process, and files of groups:
    /// a word each, and what it contains.
    fn left(mounts: &str, groups: &str, files: &str) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/self/mountinfo", mounts);
        write("proc/self/cgroup", groups);
        for file in files.split_whitespace() {
            let (path, content) = file.split_once('=').unwrap();
            let content = content.replace(':', " ").replace(',', "\n");
            write(&format!("sys/fs/cgroup/{path}"), &(content + "\n"));
        }
        left_by_groups(root.path())
    }

    #[test]
    fn the_lowest_limit_of_all_groups_above_counts() {
        let unlimited = "9223372036854771712";
        let hybrid = format!(
            "{V1}{}",
            V2.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
        );
        for (mounts, groups, files, expected) in [
            // none
            ("", "", "", None),
            (V2, "0::/\n", "", None),
            (V2, "0::/a\n", "a/memory.max=max a/memory.current=7", None),
            (V2, "", "memory.max=100 memory.current=7", None),
            (
                V1,
                "5:cpu,cpuacct:/a\n",
                "memory/memory.limit_in_bytes=100",
                None,
            ),
            // version 2
            (
                V2,
                "0::/a\n",
                "a/memory.max=100 a/memory.current=70",
                Some(30),
            ),
            (
                V2,
                "0::/a\n",
                "a/memory.max=100 a/memory.current=170",
                Some(0),
            ),
            (
                V2,
                "0::/a\n",
                "a/memory.max=100 a/memory.high=80 a/memory.current=70",
                Some(10),
            ),
            (
                V2,
                "0::/a/b\n",
                "a/memory.max=100 a/memory.current=70 a/b/memory.max=max",
                Some(30),
            ),
            (
                V2,
                "0::/a/b\n",
                "a/memory.max=100 a/memory.current=70 a/b/memory.max=50 a/b/memory.current=10",
                Some(30),
            ),
            (
                V2,
                "0::/a\n",
                "a/memory.max=100 a/memory.current=70 a/memory.stat=anon:9,active_file:5,inactive_file:20",
                Some(55),
            ),
            // a container with a name space of its own
            (V2, "0::/\n", "memory.max=100 memory.current=70", Some(30)),
            (
                V2,
                "0::/../b\n",
                "memory.max=100 memory.current=70",
                Some(30),
            ),
            // version 1
            (
                V1,
                "8:cpu,cpuacct:/a\n4:memory:/b\n0::/\n",
                "memory/b/memory.limit_in_bytes=100 memory/b/memory.usage_in_bytes=60 \
                 memory/b/memory.stat=inactive_file:1,total_inactive_file:20,total_active_file:3",
                Some(63),
            ),
            (
                V1_INSIDE,
                "4:memory:/docker/1a\n",
                "memory/memory.limit_in_bytes=100 memory/memory.usage_in_bytes=60",
                Some(40),
            ),
            // both at once
            (
                hybrid.as_str(),
                "4:memory:/b\n0::/b\n",
                "memory/b/memory.limit_in_bytes=100 memory/b/memory.usage_in_bytes=60 \
                 unified/b/cgroup.procs=1",
                Some(40),
            ),
        ] {
            assert_eq!(left(mounts, groups, files), expected, "{groups}{files}");
        }
        let files = format!(
            "memory/memory.limit_in_bytes={unlimited} memory/memory.usage_in_bytes=60 \
             memory/memory.stat=total_inactive_file:0"
        );
        assert!(left(V1, "4:memory:/\n", &files).is_some_and(|bytes| bytes > 1 << 60));
    }
}
