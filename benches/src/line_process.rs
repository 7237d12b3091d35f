//! A child process that answers each line of its input with a line.

use std::{
    io::{self, BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

/// The process. It is asked to end, and awaited, when this is dropped.
pub struct LineProcess {
    child: Child,
    input: Option<ChildStdin>,
    output: Option<BufReader<ChildStdout>>,
}

impl LineProcess {
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        Ok(Self {
            input: child.stdin.take(),
            output: child.stdout.take().map(BufReader::new),
            child,
        })
    }

    /// The next line of its output; empty if it has ended.
    pub fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if let Some(output) = &mut self.output {
            output.read_line(&mut line)?;
        }
        Ok(line)
    }

    /// Sends an empty line and returns the answer.
    pub fn ask(&mut self) -> io::Result<String> {
        if let Some(input) = &mut self.input {
            input.write_all(b"\n")?;
        }
        self.line()
    }
}

impl Drop for LineProcess {
    fn drop(&mut self) {
        self.input = None; // the process ends at the end of its input
        let _ = self.child.wait();
    }
}
