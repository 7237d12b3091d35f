//! A browser without a window.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
/// It takes two seconds or so, and more on a machine that is busy.
const LIMIT: Duration = Duration::from_secs(60);

/// The browser, if the machine has one.
pub fn find() -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let folders = env::split_paths(&path);
    let places = folders.flat_map(|folder| NAMES.map(|name| folder.join(name)));
    places.into_iter().find(|place| place.is_file())
}

/// The document of a page when it has been loaded, and its scripts have run.
pub fn document(browser: &Path, page: &str, is_dark: bool) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("page.html");
    fs::write(&file, page).unwrap();
    let output = folder.path().join("document.html");
    let mut command = Command::new(browser);
    // As root it has no sandbox; and it should know of no other browser's settings.
    command
        .args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
        ])
        .args([
            "--no-first-run",
            "--disable-dev-shm-usage",
            "--window-size=1400,1000",
        ])
        .arg(format!(
            "--user-data-dir={}",
            folder.path().join("profile").display()
        ))
        .arg(format!(
            "--blink-settings=preferredColorScheme={}",
            u8::from(!is_dark)
        ))
        .arg("--dump-dom")
        .arg(format!("file://{}", file.display()))
        .stdin(Stdio::null())
        // A pipe that nobody empties would make it wait.
        .stdout(fs::File::create(&output).unwrap())
        .stderr(Stdio::null());
    let status = run(&mut command);
    assert!(status.success(), "{}: {status}", browser.display());
    fs::read_to_string(output).unwrap()
}

/// Runs a command, but not for ever.
fn run(command: &mut Command) -> ExitStatus {
    let began = Instant::now();
    let mut child = command.spawn().unwrap();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if began.elapsed() > LIMIT {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("the browser has not ended after {LIMIT:?}");
        }
        sleep(Duration::from_millis(20));
    }
}
