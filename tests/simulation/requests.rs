//! Elasticsearch as seen by one process: requests over a network that delays, loses, repeats and reorders, to a server
//! that refuses requests and items.
//!
//! A sent request is an independent task: it is executed even if its sender gives up or dies. As on a cluster, the
//! items for one index are executed together and in order, those for another index earlier or later.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use geofold::base::clock::Clock;
use geofold::base::ids::DocId;
use geofold::io::elastic::refreshes::RefreshCounts;
use geofold::io::elastic::{
    AdminAnswer, AdminCall, BulkAnswer, BulkOp, CallError, Elastic, FoundDocument, Get, GetAnswer, Index,
    ItemError, SeqNo,
};
use geofold::testkit::embedded::elasticsearch::{Doc, EsError};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::scenario::Outage;
use crate::world::{World, in_short, shortened};

/// Each way of a request that counts refreshes.
const COUNTING: Duration = Duration::from_millis(2);

/// One process's connection to Elasticsearch.
pub struct Wire {
    pub world: Arc<World>,
    /// Whose it is.
    pub process: usize,
}

/// Common to `_bulk` and `_mget`.
trait Item: Clone + Send + Sync + 'static {
    type Answer: Send + 'static;
    fn index(&self) -> &Index;
    fn id(&self) -> &DocId;
    fn in_short(&self) -> String;
    fn carry_out(&self, world: &World, by: usize) -> Self::Answer;
    fn failed(status: u16, kind: &'static str) -> Self::Answer;
}

impl Item for BulkOp {
    type Answer = BulkAnswer;

    fn index(&self) -> &Index {
        self.address().0
    }

    fn id(&self) -> &DocId {
        self.address().1
    }

    fn in_short(&self) -> String {
        in_short(self)
    }

    fn carry_out(&self, world: &World, by: usize) -> BulkAnswer {
        match world.write(by, self) {
            Ok(written) => {
                let stamp = SeqNo { seq_no: written.seq_no, primary_term: written.primary_term };
                // The real client does not request stamps of documents.
                let stamp = (!matches!(self.index(), Index::Geoshard(_))).then_some(stamp);
                BulkAnswer { status: written.status(), stamp, error: None }
            }
            Err(EsError { status, kind, reason, .. }) => {
                let error = ItemError { status, kind: kind.to_owned(), reason };
                BulkAnswer { status, stamp: None, error: Some(Box::new(error)) }
            }
        }
    }

    fn failed(status: u16, kind: &'static str) -> BulkAnswer {
        BulkAnswer { status, stamp: None, error: Some(Box::new(item_error(status, kind))) }
    }
}

impl Item for Get {
    type Answer = GetAnswer;

    fn index(&self) -> &Index {
        &self.index
    }

    fn id(&self) -> &DocId {
        &self.id
    }

    fn in_short(&self) -> String {
        format!("get {} from {}", self.id, self.index.suffix())
    }

    fn carry_out(&self, world: &World, by: usize) -> GetAnswer {
        let answer = match world.read(self) {
            Ok(None) => GetAnswer::Missing,
            Ok(Some(doc)) => GetAnswer::Found(found(&doc)),
            Err(error) => GetAnswer::Failed(item_error(0, error.kind)),
        };
        world.note(Some(self.id.as_str()), || {
            let answer = match &answer {
                GetAnswer::Found(found) => {
                    format!("version {}, {}", found.version, shortened(&found.source))
                }
                other => format!("{other:?}"),
            };
            format!("    {by} {}: {answer}", self.in_short())
        });
        answer
    }

    fn failed(_: u16, kind: &'static str) -> GetAnswer {
        GetAnswer::Failed(item_error(0, kind))
    }
}

fn found(doc: &Doc) -> FoundDocument {
    FoundDocument {
        version: doc.version.unsigned_abs(),
        stamp: SeqNo { seq_no: doc.seq_no, primary_term: doc.primary_term },
        source: bytes::Bytes::copy_from_slice(&doc.source),
    }
}

fn item_error(status: u16, kind: &str) -> ItemError {
    ItemError { status, kind: kind.to_owned(), reason: "as the scenario has it".to_owned() }
}

fn status(status: u16, kind: &str, retry_after: Option<u64>) -> CallError {
    CallError::Status {
        status,
        kind: kind.to_owned(),
        reason: "as the scenario has it".to_owned(),
        retry_after: retry_after.map(Duration::from_millis),
    }
}

/// The fate of an executed request's answer.
#[derive(Debug, Clone, Copy)]
enum Reply {
    Comes,
    /// Never arrives: the sender times out.
    Lost,
    /// The connection breaks after this many milliseconds.
    Broken(u64),
}

impl Wire {
    /// Sends one request.
    async fn request<I: Item>(&self, items: Vec<I>, patience: Duration) -> Result<Vec<I::Answer>, CallError> {
        if let Some(error) = self.refusal(items.len()) {
            self.tell(&items, &format!("fails: {error}"));
            let way_and_back = self.latency();
            sleep(way_and_back.min(patience)).await;
            return Err(error);
        }
        let reply = {
            let mut state = self.world.state();
            let lost = state.trouble.lost;
            match state.percent(lost) {
                false => Reply::Comes,
                true if state.percent(50) => Reply::Lost,
                true => Reply::Broken(state.one_to(50)),
            }
        };
        let mut answers = self.send(&items);
        let answered = async {
            let mut all: Vec<Option<I::Answer>> = items.iter().map(|_| None).collect();
            while let Some((slots, some)) = answers.recv().await {
                for (slot, answer) in slots.into_iter().zip(some) {
                    all[slot] = Some(answer);
                }
            }
            let all: Option<Vec<I::Answer>> = all.into_iter().collect();
            match (all, reply) {
                (Some(all), Reply::Comes) => {
                    sleep(self.latency()).await;
                    Ok(all)
                }
                (_, Reply::Broken(_)) => Err(CallError::Connection("reset".to_owned())),
                _ => std::future::pending().await,
            }
        };
        let patience_or_break = match reply {
            Reply::Broken(after) => patience.min(Duration::from_millis(after)),
            Reply::Comes | Reply::Lost => patience,
        };
        match (timeout(patience_or_break, answered).await, reply) {
            (Ok(answers), _) => {
                self.tell(&items, "is answered");
                answers
            }
            (Err(_), Reply::Broken(_)) => {
                self.tell(&items, "loses its connection");
                Err(CallError::Connection("reset".to_owned()))
            }
            (Err(_), _) => {
                self.tell(&items, "gets no answer in time");
                Err(CallError::Timeout(patience))
            }
        }
    }

    /// Why the whole request is refused, if so.
    fn refusal(&self, items: usize) -> Option<CallError> {
        match self.world.outage() {
            Some(Outage::All) => return Some(CallError::Connection("refused".to_owned())),
            Some(_) => return Some(status(503, "", None)),
            None => {}
        }
        let mut state = self.world.state();
        let refused = state.trouble.refused;
        if !state.percent(refused) {
            return None;
        }
        Some(match state.random.below(6) {
            0 => status(429, "es_rejected_execution_exception", Some(100)),
            1 => status(429, "es_rejected_execution_exception", None),
            2 => status(503, "", None),
            3 => CallError::Undecodable("no json".to_owned()),
            // For one item this would be the document's refusal.
            4 if items > 1 => status(413, "", None),
            _ => CallError::Connection("refused".to_owned()),
        })
    }

    /// Sends the items grouped by index; returns their answers as they arrive.
    fn send<I: Item>(&self, items: &[I]) -> mpsc::UnboundedReceiver<(Vec<usize>, Vec<I::Answer>)> {
        let (sender, answers) = mpsc::unbounded_channel();
        let mut groups: Vec<(Vec<usize>, Vec<I>)> = Vec::new();
        for (slot, item) in items.iter().enumerate() {
            match groups.iter_mut().find(|(_, group)| group[0].index() == item.index()) {
                Some((slots, group)) => {
                    slots.push(slot);
                    group.push(item.clone());
                }
                None => groups.push((vec![slot], vec![item.clone()])),
            }
        }
        for (slots, group) in groups {
            let (delay, again) = {
                let late_by = self.world.scenario.late_by;
                let mut state = self.world.state();
                let (late, twice) = (state.trouble.late, state.trouble.twice);
                let mut delay = state.one_to(self.world.scenario.setup.latency);
                if state.percent(late) {
                    delay = late_delay(state.random.bits(), late_by);
                }
                let again = state.percent(twice).then(|| late_delay(state.random.bits(), late_by));
                (delay, again)
            };
            if let Some(again) = again {
                self.carry_out(group.clone(), again, |_| ());
            }
            let sender = sender.clone();
            // The sender may have given up.
            self.carry_out(group, delay, move |some| drop(sender.send((slots, some))));
        }
        answers
    }

    /// Executes items after a delay, even if their sender is gone.
    fn carry_out<I: Item>(
        &self,
        items: Vec<I>,
        delay: u64,
        then: impl FnOnce(Vec<I::Answer>) + Send + 'static,
    ) {
        let (world, by) = (self.world.clone(), self.process);
        world.state().under_way += 1;
        let sent_at = world.clock.now();
        tokio::spawn(async move {
            sleep(Duration::from_millis(delay)).await;
            let age = world.clock.now().since(sent_at);
            // While all machines slept, the server abandoned it.
            if age <= Duration::from_millis(world.scenario.late_by) {
                let answers = items.iter().map(|item| carry_out(&world, by, item)).collect();
                then(answers);
            }
            world.state().under_way -= 1;
        });
    }

    fn latency(&self) -> Duration {
        let latency = self.world.scenario.setup.latency;
        Duration::from_millis(self.world.state().one_to(latency))
    }

    /// Adds to the history of each document concerned.
    fn tell<I: Item>(&self, items: &[I], what: &str) {
        for item in items {
            self.world
                .note(Some(item.id().as_str()), || format!("  {} {}: {what}", self.process, item.in_short()));
        }
    }
}

/// Many are a little late, some as late as possible.
fn late_delay(bits: u64, most: u64) -> u64 {
    let most = if bits.is_multiple_of(2) { most / 8 } else { most };
    1 + (bits >> 1) % most
}

fn carry_out<I: Item>(world: &World, by: usize, item: &I) -> I::Answer {
    let kind = if world.is_away(item.index()) {
        Some((503, "unavailable_shards_exception"))
    } else {
        let mut state = world.state();
        let items = state.trouble.items;
        state.percent(items).then(|| match state.random.below(3) {
            0 => (429, "es_rejected_execution_exception"),
            1 => (503, "unavailable_shards_exception"),
            _ => (403, "cluster_block_exception"),
        })
    };
    match kind {
        None => item.carry_out(world, by),
        Some((status, kind)) => {
            world.note(Some(item.id().as_str()), || format!("    {by} {}: {status} {kind}", item.in_short()));
            I::failed(status, kind)
        }
    }
}

impl Elastic for Wire {
    fn mget<'a>(
        &'a self,
        gets: &'a [Get],
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Vec<GetAnswer>, CallError>> {
        self.request(gets.to_vec(), timeout).boxed()
    }

    fn bulk_refs<'a>(
        &'a self,
        ops: &'a [&'a BulkOp],
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Vec<BulkAnswer>, CallError>> {
        self.request(ops.iter().copied().cloned().collect(), timeout).boxed()
    }

    /// Takes time and can fail; it shows the state at one moment of that time.
    fn refresh<'a>(
        &'a self,
        indices: &'a [Index],
        patience: Duration,
    ) -> BoxFuture<'a, Result<(), CallError>> {
        async move {
            sleep(self.latency().min(patience)).await;
            if let Some(error) = self.refusal(1) {
                return Err(error);
            }
            for index in indices {
                self.world.refresh(index.suffix());
                self.world.count_refresh(index.suffix());
            }
            sleep(self.latency().min(patience)).await;
            Ok(())
        }
        .boxed()
    }

    fn count_refreshes<'a>(
        &'a self,
        indices: &'a [Index],
        patience: Duration,
    ) -> BoxFuture<'a, Result<Vec<RefreshCounts>, CallError>> {
        async move {
            sleep(COUNTING.min(patience)).await;
            let counts = indices.iter().map(|index| self.world.refreshes(index.suffix())).collect();
            sleep(COUNTING.min(patience)).await;
            Ok(counts)
        }
        .boxed()
    }

    fn admin<'a>(&'a self, call: AdminCall, _: Duration) -> BoxFuture<'a, Result<AdminAnswer, CallError>> {
        unreachable!("a worker makes no such call: {call:?}")
    }
}
