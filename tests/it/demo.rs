//! `geofold demo`, the binary: its verdict, its view, and that nothing is left of it however it ends. With the feature
//! `sabotage`: that the verdict finds what is broken.

use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::wait::wait_for;

fn start(arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_geofold"))
        .arg("demo")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn finish(demo: Child) -> Output {
    demo.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A number as it is printed.
fn parse(text: &str) -> f64 {
    text.replace(',', "").parse().unwrap_or_else(|_| panic!("{text:?} is no number"))
}

/// The number in the line of the verdict that begins like this.
fn number(verdict: &str, what: &str) -> f64 {
    let line = verdict.lines().find_map(|line| line.trim_start().strip_prefix(what));
    let line = line.unwrap_or_else(|| panic!("no {what:?} in\n{verdict}"));
    parse(line.split_whitespace().next().unwrap())
}

fn truth(verdict: &str) -> &str {
    let line = verdict.lines().find_map(|line| line.trim_start().strip_prefix("truth")).unwrap();
    line.split_whitespace().next().unwrap()
}

/// Processes whose parent is this one; where they are, `/proc/PID/stat` says so in its fourth field.
fn children(parent: u32) -> Vec<u32> {
    let of_parent = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, rest) = stat.rsplit_once(')')?;
        (rest.split_whitespace().nth(1)? == parent.to_string()).then_some(pid)
    };
    let pids = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(of_parent).collect()
}

/// Whether a process is there and is not only waiting to be reaped.
fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// A demo in the middle of its day, and its workers.
fn in_mid_run() -> (Child, Vec<u32>) {
    let mut demo = start(&["--docs", "500", "--rate", "200", "--seconds", "600", "--calm"]);
    // The second line of the view comes when both workers are at work. Byte for byte: the rest is for whoever reads on.
    let mut byte = [0];
    let mut lines = 0;
    while lines < 2 {
        std::io::Read::read_exact(demo.stderr.as_mut().unwrap(), &mut byte).unwrap();
        lines += usize::from(byte == *b"\n");
    }
    let workers = children(demo.id());
    assert_eq!(workers.len(), 2);
    (demo, workers)
}

#[test]
fn a_bad_day_ends_with_the_right_index_and_the_same_seed_with_the_same_truth() {
    let day = ["--docs", "2000", "--rate", "1000", "--seconds", "6"];
    let demos = [("7", ""), ("7", "--calm"), ("8", "--calm")].map(|(seed, calm)| {
        let more = ["--seed", seed, calm];
        let arguments: Vec<&str> = day.iter().chain(&more).copied().filter(|part| !part.is_empty()).collect();
        start(&arguments)
    });
    let verdicts = demos.map(|demo| {
        let output = finish(demo);
        let verdict = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{verdict}{}", text(&output.stderr));
        assert!(verdict.starts_with("verdict: the index is right\n"), "{verdict}");
        for nothing in [
            "in wrong place",
            "missing",
            "doubled",
            "stale",
            "surplus",
            "misfiled",
            "ever broken",
            "search misses",
        ] {
            assert_eq!(number(&verdict, nothing), 0.0, "{verdict}");
        }
        assert!(number(&verdict, "events") >= 8000.0, "{verdict}");
        assert!((1500.0..=2000.0).contains(&number(&verdict, "documents")), "{verdict}");
        let left = parse(verdict.split(" people had left").next().unwrap().rsplit(' ').next().unwrap());
        assert_eq!(number(&verdict, "people"), number(&verdict, "documents") + left, "{verdict}");
        assert!(number(&verdict, "moves") > 0.0, "{verdict}");
        let searches = verdict.split(" searches").next().unwrap().rsplit(' ').next().unwrap();
        assert!(parse(searches) > 5.0, "{verdict}");
        let poison = verdict.split(" bad records sent").next().unwrap().rsplit(' ').next().unwrap();
        assert!(number(&verdict, "dead-lettered") > 0.0);
        assert_eq!(number(&verdict, "dead-lettered"), parse(poison), "{verdict}");
        assert!((20.0..512.0).contains(&number(&verdict, "memory")), "{verdict}");
        // Not a terminal: plain lines, and no escape sequences.
        let seen = text(&output.stderr);
        assert!(seen.contains("going wrong: ") && seen.contains("busiest: "), "{seen}");
        assert!(!seen.contains('\u{1b}') && !verdict.contains('\u{1b}'), "{seen}{verdict}");
        assert!(seen.starts_with("2,000 people move between 55 indices"), "{seen}");
        verdict
    });
    let [bad, calm, other] = &verdicts;
    // Nine, unless a busy machine takes so long for each that the day is over before.
    let survived = number(bad, "faults survived");
    assert!((3.0..=9.0).contains(&survived), "{bad}");
    assert_eq!(number(calm, "faults survived"), 0.0, "{calm}");
    let faults = ["elasticsearch is down", "worker 1 is frozen", "worker 2 is killed with -9"];
    assert!(faults.iter().any(|fault| bad.contains(fault)), "{bad}");
    assert!(!faults.iter().any(|fault| calm.contains(fault)), "{calm}");
    assert!(number(bad, "retries") > 0.0, "{bad}");
    assert_eq!(truth(bad), truth(calm), "the same people, whatever went wrong");
    assert_ne!(truth(calm), truth(other));
}

#[test]
fn pages_are_held_after_the_verdict_until_a_signal() {
    let mut demo = start(&["--docs", "500", "--rate", "200", "--seconds", "2", "--calm", "--hold"]);
    let mut said = String::new();
    let mut lines = std::io::BufReader::new(demo.stdout.take().unwrap());
    while !said.contains("status pages, until Ctrl-C") {
        assert!(std::io::BufRead::read_line(&mut lines, &mut said).unwrap() > 0, "{said}");
    }
    assert!(said.starts_with("verdict: the index is right\n"), "{said}");
    let workers = children(demo.id());
    assert_eq!(workers.len(), 2);
    let pages: Vec<&str> = said.lines().last().unwrap().split("  ").collect();
    let pages = pages.iter().map(|page| page.rsplit(' ').next().unwrap());
    for page in pages {
        let page = reqwest::blocking::get(page).unwrap().text().unwrap();
        assert!(page.contains("geofold"), "{page}");
    }
    send(&demo, Signal::INT);
    assert_eq!(finish(demo).status.code(), Some(0));
    assert!(workers.iter().all(|pid| !is_alive(*pid)), "{workers:?}");
}

#[test]
fn a_signal_ends_the_demo_and_its_workers() {
    for signal in [Signal::INT, Signal::TERM] {
        let (demo, workers) = in_mid_run();
        let began = Instant::now();
        send(&demo, signal);
        let output = finish(demo);
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains("error: interrupted"), "{}", text(&output.stderr));
        assert!(workers.iter().all(|pid| !is_alive(*pid)), "{workers:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn workers_do_not_outlive_a_demo_that_is_killed() {
    let (demo, workers) = in_mid_run();
    send(&demo, Signal::KILL);
    finish(demo);
    wait_for("the end of the workers", || workers.iter().all(|pid| !is_alive(*pid)).then_some(()));
}

#[test]
fn wrong_arguments_and_a_used_port_are_reported() {
    for arguments in [["--docs", "0"], ["--seconds", "x"], ["--nonsense", "1"]] {
        let output = finish(start(&arguments));
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(text(&output.stderr).contains(arguments[0]), "{}", text(&output.stderr));
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = finish(start(&["--port", &port]));
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains(&format!("port {port} cannot be had")) && said.contains("--port"), "{said}");
}

#[cfg(not(feature = "sabotage"))]
#[test]
fn a_normal_build_knows_no_sabotage() {
    let output = finish(start(&["--sabotage", "delete-first"]));
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("unexpected argument '--sabotage'"), "{}", text(&output.stderr));
    let worker =
        Command::new(env!("CARGO_BIN_EXE_geofold")).args(["run", "--sabotage", "delete-first"]).output();
    assert_eq!(worker.unwrap().status.code(), Some(2));
    let binary = std::fs::read(env!("CARGO_BIN_EXE_geofold")).unwrap();
    let is_there = |name: &[u8]| binary.windows(name.len()).any(|part| part == name);
    assert!(!is_there(b"delete-first") && !is_there(b"lose-a-fold"), "the names are in the binary");
}

/// A terminal of 80 columns, as far as the view needs one. Nothing scrolls out of it.
#[derive(Default)]
pub struct Screen {
    rows: Vec<Vec<char>>,
    row: usize,
    column: usize,
}

impl Screen {
    const COLUMNS: usize = 80;

    fn put(&mut self, character: char) {
        // A full line goes on in the next one with the character after its last, not before.
        if self.column == Self::COLUMNS {
            (self.row, self.column) = (self.row + 1, 0);
        }
        let row = self.row_here();
        let column = self.column;
        let row = &mut self.rows[row];
        row.resize(row.len().max(column + 1), ' ');
        row[column] = character;
        self.column += 1;
    }

    fn row_here(&mut self) -> usize {
        self.rows.resize(self.rows.len().max(self.row + 1), Vec::new());
        self.row
    }

    /// An escape sequence of cursor or eraser; colours do nothing.
    fn control(&mut self, parameter: &str, kind: char) {
        let count = parameter.parse().unwrap_or(1);
        let row = self.row_here();
        match kind {
            'A' => self.row = row.saturating_sub(count),
            'B' => self.row = row + count,
            'K' if parameter == "2" => self.rows[row].clear(),
            'K' => self.rows[row].truncate(self.column),
            'J' => {
                self.rows[row].truncate(self.column);
                self.rows.truncate(row + 1);
            }
            'm' | 'h' | 'l' => {}
            other => {
                panic!("the view uses an escape sequence that this test does not know: {parameter}{other}")
            }
        }
    }

    /// Draws what a program has printed; `look` after each control sequence, since to look takes long.
    pub fn draw(&mut self, raw: &str, mut look: impl FnMut(&Self)) {
        let mut characters = raw.chars();
        while let Some(character) = characters.next() {
            match character {
                '\r' => self.column = 0,
                '\n' => self.row += 1,
                '\u{1b}' => {
                    let sequence: String =
                        characters.by_ref().skip(1).take_while(|c| !c.is_ascii_alphabetic()).collect();
                    // `take_while` takes the letter too; look it up where it stood.
                    let at = raw.len() - characters.as_str().len() - 1;
                    self.control(sequence.trim_start_matches('?'), raw[at..].chars().next().unwrap());
                    look(self);
                }
                character => self.put(character),
            }
        }
    }

    /// All rows.
    pub fn text(&self) -> String {
        let rows = self.rows.iter().map(|row| row.iter().collect::<String>().trim_end().to_owned() + "\n");
        rows.collect()
    }

    /// How many rows hold this.
    fn rows_with(&self, part: &str) -> usize {
        self.rows.iter().filter(|row| row.iter().collect::<String>().contains(part)).count()
    }
}

#[test]
fn on_a_terminal_of_80_columns_a_few_lines_change_and_are_gone_in_the_end() {
    let demo = format!(
        "stty cols 80 rows 24 && {} demo --docs 1000 --rate 1000 --seconds 4",
        env!("CARGO_BIN_EXE_geofold")
    );
    let terminal = Command::new("script")
        .args(["-qec", &demo, "/dev/null"])
        .env("TERM", "xterm")
        .env_remove("NO_COLOR")
        .stdin(Stdio::null())
        .output();
    let Ok(output) = terminal else {
        return eprintln!("skipped: no script(1) here, which makes a terminal");
    };
    let raw = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{raw}");

    let lines = [
        "people move between 55 indices",
        " moves",
        " retries",
        "busiest       s",
        "going wrong   ",
        "status pages  http",
    ];
    let mut screen = Screen::default();
    let mut drawn = 0;
    screen.draw(&raw, |screen| {
        for line in lines {
            assert!(screen.rows_with(line) <= 1, "{line:?} is there twice: it was not drawn over");
        }
        drawn += usize::from(lines.iter().all(|line| screen.rows_with(line) == 1));
    });
    assert!(drawn > 0, "the lines were never there together");
    assert_eq!(screen.rows_with("░"), 0, "the bar is left behind");
    assert!(lines[3..].iter().all(|line| screen.rows_with(line) == 0), "the view is left behind");
    assert_eq!(screen.rows_with("verdict: the index is right"), 1, "{raw}");
    assert!(raw.contains("verdict: \u{1b}[32mthe index is right"), "in colour: {raw}");
    let url = raw.split("status pages").nth(1).unwrap().split_whitespace().nth(1).unwrap();
    assert!(
        url.starts_with("http://127.0.0.1:") && url.ends_with('/'),
        "the second page is cut off: {url:?}"
    );
}

/// Days, of a seed each, in one of which a sabotage has to be found. On an idle machine the first is enough; on a busy one a
/// worker may not be killed, or not lag behind, at the moment that it takes. The simulation finds the same for certain.
#[cfg(feature = "sabotage")]
const DAYS: usize = 4;

#[cfg(feature = "sabotage")]
#[test]
#[ignore = "what real processes happen to do decides: dev/soak"]
fn verdict_names_the_documents_of_every_sabotage() {
    use clap::ValueEnum;
    use geofold::base::sabotage::FOUND_BY_THE_DEMO;

    let mut not_found: Vec<String> = FOUND_BY_THE_DEMO
        .map(|sabotage| sabotage.to_possible_value().unwrap().get_name().to_owned())
        .into_iter()
        .collect();
    for seed in 1..=DAYS {
        not_found = a_day_of_each(&not_found, &seed.to_string());
    }
    assert_eq!(not_found, Vec::<String>::new(), "not found within {DAYS} days");
}

/// Those of these sabotages that this day's verdict did not find.
#[cfg(feature = "sabotage")]
fn a_day_of_each(names: &[String], seed: &str) -> Vec<String> {
    let day = ["--docs", "4000", "--rate", "600", "--seconds", "20", "--seed", seed, "--sabotage"];
    let mut not_found = Vec::new();
    // Some at a time: a worker that waits for the processor for seconds is given up by its group, and again.
    for some in names.chunks(4) {
        let demos: Vec<(&String, Child)> = some
            .iter()
            .map(|name| {
                let arguments: Vec<&str> = day.iter().copied().chain([name.as_str()]).collect();
                (name, start(&arguments))
            })
            .collect();
        for (name, demo) in demos {
            let output = finish(demo);
            let verdict = text(&output.stdout);
            if !verdict.contains("THE INDEX IS WRONG") {
                println!("{name}: not on day {seed}: {verdict}{}", text(&output.stderr));
                not_found.push(name.clone());
                continue;
            }
            assert_eq!(output.status.code(), Some(1), "{name}: {verdict}{}", text(&output.stderr));
            let named = verdict.lines().find(|line| line.starts_with("  wrong: person"));
            println!("{name}: {}", named.unwrap_or_else(|| panic!("{name} names nobody: {verdict}")).trim());
        }
    }
    not_found
}
