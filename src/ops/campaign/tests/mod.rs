//! Campaigns on the databases: SQLite, and PostgreSQL where there is one.

use std::io::Cursor;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::create::{Created, IdSource, SortOptions, create};
use super::reserve::{Lease, Reservation};
use super::store::{CampaignStore, CampaignStoreError, Failed, NewCampaign};
use super::*;
use crate::io::database::tests::{Fresh, each};
use crate::io::database::{Database, SqlValue};

mod model;

const LONG: Duration = Duration::from_secs(3600);

async fn stores() -> Vec<(Fresh, CampaignStore)> {
    let mut stores = Vec::new();
    for fresh in each().await {
        let store = CampaignStore::new(fresh.database.clone());
        store.prepare().await.unwrap();
        stores.push((fresh, store));
    }
    stores
}

fn new(chunk: u32) -> NewCampaign {
    NewCampaign {
        may_be_empty: true,
        name: "a test".to_owned(),
        action: CampaignAction::Touch,
        topic: "documents".to_owned(),
        selection: "a list".to_owned(),
        chunk,
        rate: None,
        every: None,
        request: None,
    }
}

async fn make(store: &CampaignStore, new: &NewCampaign, ids: &str) -> Created {
    let list = IdSource::List(Box::new(Cursor::new(ids.to_owned())));
    let sort_options = SortOptions { folder: std::env::temp_dir(), memory: 1 << 20 };
    let stop = CancellationToken::new();
    create(store, new, list, &sort_options, false, &stop, &|_| {}).await.unwrap().unwrap()
}

fn names(count: u64) -> String {
    (0..count).map(|number| format!("id-{number:06}\n")).collect()
}

async fn reserved(store: &CampaignStore, id: i64, runner: &str) -> Lease {
    match store.reserve(id, runner, LONG).await.unwrap() {
        Reservation::Chunk(lease) => lease,
        other => panic!("{other:?}"),
    }
}

async fn sql(database: &Database, sql: &'static str, values: &[SqlValue<'_>]) {
    let mut transaction = database.begin("meddling").await.unwrap();
    transaction.execute(sql, values).await.unwrap();
    transaction.commit().await.unwrap();
}

/// The time of this lease is over.
async fn expire(store: &CampaignStore, lease: &Lease) {
    let values = [SqlValue::Int(lease.campaign), SqlValue::Int(lease.token)];
    let statement = "UPDATE campaign_lease SET expires = 1 WHERE campaign = $1 AND token = $2";
    sql(&store.database, statement, &values).await;
}

#[tokio::test]
async fn a_list_is_there_whole_each_id_once_or_not_at_all() {
    for (_fresh, store) in stores().await {
        let list = "b\r\na\n\nb\n{\"id\":\"c\",\"defect\":\"no-copy\"}\n{\"x\":1}\n";
        let created = make(&store, &new(2), list).await;
        assert_eq!((created.read, created.ids, created.bad), (4, 4, 1));
        let status = store.status(created.id).await.unwrap();
        assert_eq!((status.ids, status.failed, status.chunks, status.state), (4, 1, 2, CampaignState::Ready));
        let (first, second) =
            (reserved(&store, created.id, "r").await, reserved(&store, created.id, "r").await);
        assert_eq!(store.chunk(&first).await.unwrap().unwrap(), [b"a", b"b"]);
        assert_eq!(store.chunk(&second).await.unwrap().unwrap(), [b"c"]);

        // Half a list, as after a crash: no token of it is handed out, and it can be shown, cancelled and removed.
        let half = store.create(&new(2)).await.unwrap().unwrap();
        let mut chunk = Vec::new();
        chunk::push(&mut chunk, b"x");
        assert!(store.append(half, &[chunk.clone()], 1).await.unwrap());
        assert!(matches!(store.reserve(half, "r", LONG).await.unwrap(), Reservation::Wait(_)));
        assert!(!store.status(half).await.unwrap().broken_off);
        sql(&store.database, "UPDATE campaign SET beat = 1 WHERE id = $1", &[SqlValue::Int(half)]).await;
        let seen = store.status(half).await.unwrap();
        assert!(seen.broken_off && seen.state == CampaignState::Creating);
        assert!(matches!(store.remove(half).await, Err(CampaignStoreError::Refused(..))));
        assert_eq!(store.execute(half, Command::Cancel).await.unwrap(), CampaignState::Cancelled);
        // Who comes back and goes on writing finds out.
        assert!(!store.append(half, &[chunk], 1).await.unwrap());
        assert!(!store.seal(half, false).await.unwrap() && !store.beat(half).await.unwrap());
        store.remove(half).await.unwrap();
        assert!(matches!(store.status(half).await, Err(CampaignStoreError::Unknown(_))));
        assert_eq!(store.list().await.unwrap().len(), 1);
    }
}

#[tokio::test]
async fn a_list_that_can_not_be_read_leaves_nothing() {
    for (_fresh, store) in stores().await {
        let bad = "\u{1}".repeat(600) + "\n";
        let list = IdSource::List(Box::new(Cursor::new(bad.repeat(intake::MAX_BAD + 1))));
        let sort_options = SortOptions { folder: std::env::temp_dir(), memory: 1 << 20 };
        let stop = CancellationToken::new();
        assert!(create(&store, &new(2), list, &sort_options, false, &stop, &|_| {}).await.is_err());
        assert_eq!(store.list().await.unwrap(), []);
    }
}

#[tokio::test]
async fn runners_at_once_get_every_token_once() {
    const RUNNERS: usize = 16;
    for (fresh, store) in stores().await {
        let created = make(&store, &new(3), &names(600)).await;
        let run = async |number: usize| {
            let store = CampaignStore::new(Database::open(&fresh.config).await.unwrap());
            let mut mine = Vec::new();
            loop {
                match store.reserve(created.id, &format!("r{number}"), LONG).await.unwrap() {
                    Reservation::Chunk(lease) => {
                        let ids = store.chunk(&lease).await.unwrap().unwrap();
                        assert!(store.finish(&lease, ids.len(), &[]).await.unwrap());
                        mine.push(lease.token);
                    }
                    Reservation::Wait(time) => tokio::time::sleep(time).await,
                    Reservation::Over(state) => break assert_eq!(state, CampaignState::Done),
                    Reservation::Unknown => panic!("it is there"),
                }
            }
            store.close().await;
            mine
        };
        let tokens = futures::future::join_all((0..RUNNERS).map(run)).await;
        let mut tokens: Vec<i64> = tokens.into_iter().flatten().collect();
        tokens.sort_unstable();
        assert_eq!(tokens, (1..=200).collect::<Vec<_>>());
        let status = store.status(created.id).await.unwrap();
        assert_eq!((status.produced, status.failed, status.state), (600, 0, CampaignState::Done));
    }
}

#[tokio::test]
async fn expired_lease_is_reassigned_after_fresh_tokens() {
    for (_fresh, store) in stores().await {
        let created = make(&store, &new(1), "a\nb\n").await;
        let frozen = reserved(&store, created.id, "frozen").await;
        expire(&store, &frozen).await;
        let fresh = reserved(&store, created.id, "other").await;
        assert_eq!((fresh.token, fresh.fence), (2, 1), "fresh tokens first");
        let again = reserved(&store, created.id, "other").await;
        assert_eq!((again.token, again.fence), (1, 2));
        assert!(matches!(store.reserve(created.id, "r", LONG).await.unwrap(), Reservation::Wait(_)));

        assert_eq!(store.extend(&frozen, LONG).await.unwrap(), None);
        assert!(!store.finish(&frozen, 1, &[]).await.unwrap());
        store.give_back(&frozen).await.unwrap();
        assert!(store.extend(&again, LONG).await.unwrap().is_some());
        assert!(store.finish(&again, 1, &[]).await.unwrap());
        assert!(!store.finish(&again, 1, &[]).await.unwrap(), "once");
        assert!(store.finish(&fresh, 1, &[]).await.unwrap());
        let status = store.status(created.id).await.unwrap();
        assert_eq!((status.state, status.produced), (CampaignState::Done, 2));
    }
}

#[tokio::test]
async fn a_lease_ends_by_the_clock_of_the_database() {
    for (_fresh, store) in stores().await {
        let created = make(&store, &new(1), "a\n").await;
        let short = Duration::from_millis(1);
        let Reservation::Chunk(first) = store.reserve(created.id, "r", short).await.unwrap() else {
            panic!()
        };
        let again = loop {
            match store.reserve(created.id, "r", LONG).await.unwrap() {
                Reservation::Chunk(lease) => break lease,
                Reservation::Wait(time) => tokio::time::sleep(time).await,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!((again.token, again.fence), (first.token, 2));
        // The same runner, but not the same lease.
        assert!(!store.finish(&first, 1, &[]).await.unwrap());
    }
}

#[tokio::test]
async fn failed_ids_are_kept_and_retried_under_new_tokens() {
    for (_fresh, store) in stores().await {
        let created = make(&store, &new(2), &names(4)).await;
        let failed = |id: &[u8]| Failed { id: id.to_vec(), reason: "too\0large".to_owned() };
        for _ in 0..2 {
            let lease = reserved(&store, created.id, "r").await;
            let ids = store.chunk(&lease).await.unwrap().unwrap();
            assert!(store.finish(&lease, 1, &[failed(&ids[1])]).await.unwrap());
        }
        let status = store.status(created.id).await.unwrap();
        assert_eq!((status.state, status.produced, status.failed), (CampaignState::Done, 2, 2));
        assert_eq!(store.failed(created.id, 9).await.unwrap()[1].reason, "too large");
        assert_eq!(store.retry(created.id).await.unwrap(), 2);
        let status = store.status(created.id).await.unwrap();
        assert_eq!(
            (status.state, status.failed, status.chunks_fresh, status.ended),
            (CampaignState::Ready, 0, 1, 0)
        );
        let lease = reserved(&store, created.id, "r").await;
        assert_eq!(store.chunk(&lease).await.unwrap().unwrap(), [b"id-000001", b"id-000003"]);
        assert!(store.finish(&lease, 2, &[]).await.unwrap());
        let status = store.status(created.id).await.unwrap();
        assert_eq!((status.state, status.produced, status.done()), (CampaignState::Done, 4, status.ids));
        assert_eq!(store.retry(created.id).await.unwrap(), 0);
        assert_eq!(store.status(created.id).await.unwrap().state, CampaignState::Done);
    }
}

#[tokio::test]
async fn paused_campaign_finishes_chunks_in_work() {
    for (_fresh, store) in stores().await {
        let created = make(&store, &new(1), "a\nb\nc\n").await;
        let id = created.id;
        let first = reserved(&store, id, "r").await;
        store.execute(id, Command::Pause).await.unwrap();
        assert!(matches!(store.reserve(id, "r", LONG).await.unwrap(), Reservation::Wait(_)));
        assert_eq!(store.extend(&first, LONG).await.unwrap().unwrap().state, CampaignState::Paused);
        assert!(store.finish(&first, 1, &[]).await.unwrap());
        store.execute(id, Command::Resume).await.unwrap();
        let second = reserved(&store, id, "r").await;
        store.execute(id, Command::Cancel).await.unwrap();
        assert_eq!(store.reserve(id, "r", LONG).await.unwrap(), Reservation::Over(CampaignState::Cancelled));
        assert_eq!(store.extend(&second, LONG).await.unwrap().unwrap().state, CampaignState::Cancelled);
        let error = store.execute(id, Command::Resume).await.unwrap_err();
        assert!(error.to_string().contains("is cancelled; make a new one"), "{error}");
        store.remove(id).await.unwrap();
        assert_eq!(store.extend(&second, LONG).await.unwrap(), None);
        assert_eq!(store.reserve(id, "r", LONG).await.unwrap(), Reservation::Unknown);
        assert!(matches!(store.set_rate(id, None).await, Err(CampaignStoreError::Unknown(_))));
    }
}

#[tokio::test]
async fn a_rate_holds_for_all_runners_together_and_can_be_changed() {
    for (_fresh, store) in stores().await {
        // A chunk is worth ten minutes.
        let created = make(&store, &NewCampaign { rate: Some(1), ..new(600) }, &names(6_000)).await;
        assert_eq!(reserved(&store, created.id, "a").await.rate, 1);
        for runner in ["a", "b", "c"] {
            let Reservation::Wait(time) = store.reserve(created.id, runner, LONG).await.unwrap() else {
                panic!("{runner} got a token")
            };
            assert_eq!(time, next::LOOK);
        }
        let second = async |rate| {
            store.set_rate(created.id, rate).await.unwrap();
            reserved(&store, created.id, "b").await
        };
        assert_eq!(second(None).await.rate, 0);
        // At this rate a chunk is worth less than the second that may be made up for.
        assert_eq!(second(Some(6_000)).await.rate, 6_000);
    }
}

#[tokio::test]
async fn each_period_has_one_campaign() {
    for (fresh, store) in stores().await {
        let daily = NewCampaign { every: Some(LONG * 24 * 365 * 10), ..new(2) };
        let others: Vec<CampaignStore> = futures::future::join_all(
            (0..8).map(async |_| CampaignStore::new(Database::open(&fresh.config).await.unwrap())),
        )
        .await;
        let made = futures::future::join_all(others.iter().map(|store| store.create(&daily))).await;
        let made: Vec<i64> = made.into_iter().filter_map(Result::unwrap).collect();
        assert_eq!(made.len(), 1);
        // Its creator is gone: the period is free.
        sql(&store.database, "UPDATE campaign SET beat = 1", &[]).await;
        let second = store.create(&daily).await.unwrap().unwrap();
        assert_eq!(store.status(made[0]).await.unwrap().state, CampaignState::Cancelled);
        assert!(store.seal(second, false).await.unwrap());
        store.execute(second, Command::Cancel).await.unwrap();
        assert_eq!(store.create(&daily).await.unwrap(), None, "it had its campaign");
        // The next period has begun, and then the one after, before that one is over.
        for expected in [true, false] {
            sql(&store.database, "UPDATE campaign SET period = period - 1", &[]).await;
            let next = store.create(&daily).await.unwrap();
            assert_eq!(next.is_some(), expected);
            if let Some(next) = next {
                assert!(store.seal(next, false).await.unwrap());
            }
        }
        for store in others {
            store.close().await;
        }
    }
}

#[test]
fn allowed_commands_depend_on_the_state() {
    use CampaignState::{Cancelled, Creating, Done, Paused, Ready};
    for state in CampaignState::ALL {
        assert_eq!(state.to_string().parse(), Ok(state));
        let cancelled = Command::Cancel.apply(state);
        assert_eq!(cancelled.ok(), (state != Done).then_some(Cancelled));
        assert_eq!(Command::Remove.apply(state).is_ok(), state.is_over());
        let moves = matches!(state, Ready | Paused);
        assert_eq!(Command::Pause.apply(state).is_ok(), moves);
        assert_eq!(Command::Resume.apply(state).is_ok(), moves);
        assert_eq!(Command::Retry.apply(state).is_ok(), !matches!(state, Creating | Cancelled));
    }
    for action in CampaignAction::ALL {
        assert_eq!(action.to_string().parse(), Ok(action));
    }
}
