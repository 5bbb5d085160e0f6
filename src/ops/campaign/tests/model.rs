//! Random histories of runners and people, and a model beside the database.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::base::random::{Random, seed_of_test};

fn count(count: usize) -> i64 {
    i64::try_from(count).unwrap()
}

/// What the database should say, kept beside it.
#[derive(Default)]
struct Model {
    state: Option<CampaignState>,
    /// Tokens that were given so far.
    given: i64,
    /// Ids by token; retries add tokens.
    chunks: BTreeMap<i64, Vec<Vec<u8>>>,
    /// Who holds a token; whether its time is over.
    leases: BTreeMap<i64, (Lease, bool)>,
    /// Leases that a runner lost.
    lost: Vec<Lease>,
    failed: Vec<Vec<u8>>,
    produced: BTreeSet<Vec<u8>>,
}

#[tokio::test]
async fn no_token_is_lost_or_held_twice_under_any_commands() {
    let seed = seed_of_test();
    println!("GEOFOLD_SEED={seed}");
    for (_fresh, store) in stores().await {
        for round in 0..5 {
            let mut random = Random::new(seed.wrapping_add(round));
            history(&store, &mut random).await;
        }
    }
}

async fn history(store: &CampaignStore, random: &mut Random) {
    let ids = random.below(40);
    let size = u32::try_from(1 + random.below(4)).unwrap();
    let id = make(store, &new(size), &names(ids)).await.id;
    let mut model = Model { state: Some(CampaignState::Ready), ..Model::default() };
    let all: Vec<Vec<u8>> = names(ids).lines().map(|line| line.as_bytes().to_vec()).collect();
    for (token, ids) in (1..).zip(all.chunks(size as usize)) {
        model.chunks.insert(token, ids.to_vec());
    }
    for step in 0..150 {
        let pick = |model: &Model, random: &mut Random| {
            let held: Vec<Lease> = model.leases.values().map(|(lease, _)| lease.clone()).collect();
            let at = usize::try_from(random.below(held.len() as u64)).unwrap();
            held.get(at).cloned()
        };
        match random.below(12) {
            0..=3 => reserve(store, id, &mut model, &format!("r{}", random.below(3))).await,
            4..=5 => {
                let Some(lease) = pick(&model, random) else { continue };
                let ids = store.chunk(&lease).await.unwrap().unwrap();
                assert_eq!(ids, model.chunks[&lease.token]);
                let bad: Vec<Vec<u8>> = ids.iter().filter(|_| random.below(5) == 0).cloned().collect();
                let failed: Vec<Failed> =
                    bad.iter().map(|id| Failed { id: id.clone(), reason: "x".to_owned() }).collect();
                assert!(store.finish(&lease, ids.len() - bad.len(), &failed).await.unwrap());
                model.leases.remove(&lease.token);
                model.produced.extend(ids.into_iter().filter(|id| !bad.contains(id)));
                model.failed.extend(bad);
                model.end_if_done();
            }
            6 => {
                // It died, or froze.
                let Some(lease) = pick(&model, random) else { continue };
                expire(store, &lease).await;
                model.leases.insert(lease.token, (lease, true));
            }
            7 => {
                let Some(lease) = pick(&model, random) else { continue };
                assert!(store.extend(&lease, LONG).await.unwrap().is_some());
                model.leases.insert(lease.token, (lease, false));
            }
            8 => {
                let Some(lease) = model.lost.pop() else { continue };
                assert!(!store.finish(&lease, 1, &[]).await.unwrap());
                assert_eq!(store.extend(&lease, LONG).await.unwrap(), None);
            }
            9 => {
                let Some(lease) = pick(&model, random) else { continue };
                store.give_back(&lease).await.unwrap();
                model.leases.insert(lease.token, (lease, true));
            }
            10 => {
                let command = [Command::Pause, Command::Resume][usize::try_from(random.below(2)).unwrap()];
                let told = store.execute(id, command).await.ok();
                let expected = command.apply(model.state.unwrap()).ok();
                assert_eq!(told, expected, "step {step}");
                model.state = expected.or(model.state);
            }
            _ => {
                let after = Command::Retry.apply(model.state.unwrap()).unwrap();
                assert_eq!(store.retry(id).await.unwrap(), model.failed.len() as u64);
                let failed = std::mem::take(&mut model.failed);
                let first = count(model.chunks.len()) + 1;
                for (token, ids) in (first..).zip(failed.chunks(size as usize)) {
                    model.chunks.insert(token, ids.to_vec());
                    model.state = Some(after);
                }
            }
        }
        model.compare(store, id).await;
    }
    // Finish the remaining work, with no more faults.
    if model.state == Some(CampaignState::Paused) {
        model.state = Some(store.execute(id, Command::Resume).await.unwrap());
    }
    for (lease, over) in model.leases.values_mut() {
        expire(store, lease).await;
        *over = true;
    }
    while model.state == Some(CampaignState::Ready) {
        reserve(store, id, &mut model, "last").await;
        for (token, (lease, _)) in std::mem::take(&mut model.leases) {
            if lease.runner == "last" {
                let ids = &model.chunks[&token];
                assert!(store.finish(&lease, ids.len(), &[]).await.unwrap());
                model.produced.extend(ids.iter().cloned());
                continue;
            }
            model.leases.insert(token, (lease, true));
        }
        model.end_if_done();
    }
    model.compare(store, id).await;
    let done: BTreeSet<Vec<u8>> = model.produced.iter().chain(&model.failed).cloned().collect();
    assert_eq!(done, all.into_iter().collect(), "every id was sent, or is known to have failed");
}

async fn reserve(store: &CampaignStore, id: i64, model: &mut Model, runner: &str) {
    let answer = store.reserve(id, runner, LONG).await.unwrap();
    let over: Vec<i64> =
        model.leases.iter().filter(|(_, (_, over))| *over).map(|(token, _)| *token).collect();
    let is_ready = model.state == Some(CampaignState::Ready);
    let has_fresh = model.given < count(model.chunks.len());
    match answer {
        Reservation::Chunk(lease) => {
            assert!(is_ready);
            if has_fresh {
                model.given += 1;
                assert_eq!((lease.token, lease.fence), (model.given, 1));
            } else {
                assert!(over.contains(&lease.token));
            }
            if let Some((lost, _)) = model.leases.insert(lease.token, (lease, false)) {
                model.lost.push(lost);
            }
        }
        Reservation::Wait(_) => {
            assert!(!is_ready || (!has_fresh && over.is_empty() && !model.leases.is_empty()));
        }
        Reservation::Over(state) => {
            model.end_if_done();
            assert_eq!(Some(state), model.state);
        }
        Reservation::Unknown => panic!("it is there"),
    }
}

impl Model {
    fn end_if_done(&mut self) {
        let is_done = self.given == count(self.chunks.len()) && self.leases.is_empty();
        if is_done && self.state == Some(CampaignState::Ready) {
            self.state = Some(CampaignState::Done);
        }
    }

    async fn compare(&self, store: &CampaignStore, id: i64) {
        let status = store.status(id).await.unwrap();
        let over = count(self.leases.values().filter(|(_, over)| *over).count());
        assert_eq!(
            (status.produced, status.failed, status.chunks, status.chunks_expired, status.chunks_at_work),
            (
                count(self.produced.len()),
                count(self.failed.len()),
                count(self.chunks.len()),
                over,
                count(self.leases.len()) - over
            )
        );
        assert_eq!(status.chunks_fresh, count(self.chunks.len()) - self.given);
        // An empty list is done when the first runner asks.
        if !self.chunks.is_empty() {
            assert_eq!(Some(status.state), self.state);
        }
    }
}
