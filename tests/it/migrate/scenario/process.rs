//! A child process and its log.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command};

use crate::wait::{wait_for, wait_while_running};

/// A child process; killed on drop.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a command; all that it says goes into the file `log`.
    pub fn start(mut command: Command, log: PathBuf) -> Self {
        let file = File::create(&log).unwrap();
        let child = command.stdout(file.try_clone().unwrap()).stderr(file).spawn().unwrap();
        Self { child, log }
    }

    /// SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(status.unwrap().success(), "kill -{name}");
    }

    /// Waits until it says so.
    pub fn wait_until_it_says(&self, text: &str) {
        wait_while_running(&self.child, text, || self.log().contains(text).then_some(()));
    }

    /// Waits until it ends by itself; gives all that it said. It must end well.
    pub fn ends_well(mut self) -> String {
        let status = wait_for("the end of a process", || self.child.try_wait().unwrap());
        assert!(status.success(), "{status}\n{}", self.log());
        self.log()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(25).collect();
            eprintln!("--- the last lines of {}:", self.log.display());
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        }
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
