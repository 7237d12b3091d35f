//! A headless browser.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
/// It takes about two seconds, and more on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// The browser, if it is installed.
pub fn find() -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let folders = env::split_paths(&path);
    let places = folders.flat_map(|folder| NAMES.map(|name| folder.join(name)));
    places.into_iter().find(|place| place.is_file())
}

/// The document of a page after it has loaded and its scripts have run.
pub fn document(browser: &Path, page: &str, is_dark: bool) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("page.html");
    fs::write(&file, page).unwrap();
    let output = folder.path().join("document.html");
    let mut command = Command::new(browser);
    // Chromium has no sandbox for root. A profile of its own keeps out other settings.
    let profile = folder.path().join("profile");
    let scheme = u8::from(!is_dark);
    command
        .args(["--headless=new", "--no-sandbox", "--disable-gpu"])
        .args(["--hide-scrollbars", "--no-first-run", "--dump-dom"])
        .args(["--disable-dev-shm-usage", "--window-size=1400,1000"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
        .arg(format!("file://{}", file.display()))
        .stdin(Stdio::null())
        // A full pipe would block it.
        .stdout(fs::File::create(&output).unwrap())
        .stderr(Stdio::null());
    let status = run(&mut command);
    assert!(status.success(), "{}: {status}", browser.display());
    fs::read_to_string(output).unwrap()
}

/// Runs a command with a time limit.
fn run(command: &mut Command) -> ExitStatus {
    let start = Instant::now();
    let mut child = command.spawn().unwrap();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if start.elapsed() > LIMIT {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("the browser is still running after {LIMIT:?}");
        }
        sleep(Duration::from_millis(20));
    }
}
