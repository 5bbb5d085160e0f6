//! One list of cases, asked of the stand-in in this process and of a real Elasticsearch: what the one answers, the other
//! must answer. Each case states what it expects; the expectations were taken from Elasticsearch 8.19. The same for the
//! embedded broker and a real Kafka, under `broker/`.
//!
//! The real servers are those at GEOFOLD_TEST_ELASTICSEARCH and GEOFOLD_TEST_KAFKA (`dev/stack`), and an OpenSearch at
//! GEOFOLD_TEST_OPENSEARCH (`dev/stack up --opensearch`); where one is not set, the summary says so. `dev/servers` asks
//! every version that geofold is held to. Arguments select cases by a part of their name:
//! `cargo test --test contract -- versions`.

#![expect(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod broker;
mod client;
mod documents;
mod indices;
mod reads;
mod searches;
mod server;
#[path = "../stack_lock.rs"]
mod stack_lock;
mod versions;
#[path = "../wait.rs"]
mod wait;

use std::ffi::OsString;
use std::fs::File;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;

use futures::future::LocalBoxFuture;
use futures::{FutureExt, StreamExt, stream};
use geofold::testkit::embedded::elasticsearch::{Standin, StandinOptions};

use server::{Kind, Server};

/// Cases that a real server answers side by side; most of their time is spent waiting for it to make indices.
const SIDE_BY_SIDE: usize = 4;

/// One thing that both servers must do alike.
pub struct Case {
    name: &'static str,
    run: for<'a> fn(&'a Server) -> LocalBoxFuture<'a, ()>,
}

/// Makes `pub const CASES` of functions `async fn(&Server)`.
#[macro_export]
macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        pub const CASES: &[$crate::Case] = &[$($crate::Case {
            name: concat!(module_path!(), "::", stringify!($name)),
            run: |server| Box::pin($name(server)),
        }),*];
    };
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == broker::CONSUME) {
        broker::consume_until_killed(&arguments[1..]);
    }

    let wanted: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|part| name.contains(*part));
    let asked = std::thread::scope(|scope| {
        let brokers = scope.spawn(|| broker::run(is_wanted));
        let stack = share_stack();
        let search_servers = tokio::runtime::Runtime::new().unwrap().block_on(ask_search_servers(is_wanted));
        drop(stack);
        [search_servers, brokers.join().unwrap()]
    });
    asked.iter().for_each(|(summary, _)| println!("{summary}"));
    if asked.iter().all(|(_, is_ok)| *is_ok) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The servers of dev/stack, if it is they that are asked, shared with tests of other programs.
fn share_stack() -> Option<File> {
    stack_dir().map(|dir| stack_lock::share(dir.as_ref()))
}

/// The same, without any other test.
fn have_stack_alone() -> Option<File> {
    stack_dir().map(|dir| stack_lock::have_alone(dir.as_ref()))
}

fn stack_dir() -> Option<OsString> {
    std::env::var_os("GEOFOLD_STACK_DIR")
}

/// Says how it went, and whether all went well.
async fn ask_search_servers(is_wanted: impl Fn(&str) -> bool) -> (String, bool) {
    let all =
        [client::CASES, documents::CASES, indices::CASES, reads::CASES, searches::CASES, versions::CASES];
    let cases: Vec<&Case> = all.into_iter().flatten().filter(|case| is_wanted(case.name)).collect();

    let standin = Standin::start(StandinOptions::default()).await.unwrap();
    let mut summary = format!("contract: {} cases of a search server", cases.len());
    let mut all_ok = true;
    let mut targets = vec![(Kind::Standin, standin.url())];
    match std::env::var("GEOFOLD_TEST_ELASTICSEARCH") {
        Ok(url) => targets.push((Kind::Elasticsearch, url)),
        Err(_) => println!("real Elasticsearch: skipped, GEOFOLD_TEST_ELASTICSEARCH is not set"),
    }
    match std::env::var("GEOFOLD_TEST_OPENSEARCH") {
        Ok(url) => targets.push((Kind::OpenSearch, url)),
        Err(_) => {
            println!("OpenSearch: not run, GEOFOLD_TEST_OPENSEARCH is not set; it needs a JDK 21")
        }
    }
    for (kind, url) in targets {
        let version = Server::new(kind, &url, "").ask_version().await;
        let ok = run_all(&cases, kind, &url, &version).await;
        all_ok &= ok == cases.len();
        let version = if kind == Kind::Standin { String::new() } else { format!(" {version}") };
        summary.push_str(&format!(", {}{version} {ok} ok", kind.name()));
    }
    standin.stop().await;
    (summary, all_ok)
}

/// How many cases passed; each one that did not is named.
async fn run_all(cases: &[&Case], kind: Kind, url: &str, version: &str) -> usize {
    let target = kind.name();
    let passed: Vec<bool> = stream::iter(cases.iter().enumerate())
        .map(|(number, case)| async move {
            let server = Server::new(kind, url, &format!("contract-{}-{number}", std::process::id()))
                .of_version(version);
            let outcome = AssertUnwindSafe((case.run)(&server)).catch_unwind().await;
            server.clean_up().await;
            let name = case.name.trim_start_matches("contract::");
            match outcome {
                Ok(()) => println!("{target:<13} ok      {name}"),
                Err(_) => println!("{target:<13} FAILED  {name}"),
            }
            outcome.is_ok()
        })
        .buffer_unordered(SIDE_BY_SIDE)
        .collect()
        .await;
    passed.into_iter().filter(|passed| *passed).count()
}
